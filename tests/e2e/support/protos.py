"""Python modules generated from proto/, as any user would generate them."""

import importlib
import os
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from support import ROOT

PROTO = ROOT / "proto"


def generate(out):
    """Compiles every file of proto/ into `out` and makes the modules importable from there."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    code = protoc.main(
        [
            "protoc",
            f"-I{PROTO}",
            f"-I{well_known}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            *sources,
        ]
    )
    assert code == 0, "protoc refused proto/"
    # `envoy` is also the name of the package that carries the binary: make ours a regular package,
    # first on the path, or Python would find the other one.
    for folder, _, _ in os.walk(out):
        (Path(folder) / "__init__.py").touch()
    sys.path.insert(0, str(out))
    importlib.invalidate_caches()


def module(name):
    """A generated module, for example `envoy.service.ratelimit.v3.rls_pb2`."""
    return importlib.import_module(name)
