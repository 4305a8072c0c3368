"""Python modules generated from proto/, as any user would generate them."""

import importlib
import os
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from support import ROOT

PROTO = ROOT / "proto"

WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
"""The protos of protobuf itself."""

ASKED_OF_OTHERS = ("envoy/service/discovery/", "google/", "ratelimit/")
"""Services that porteiro is a client of. A package `google` of ours would hide protobuf's own."""


def generate(out):
    """Compiles what is served of proto/ into `out` and makes the modules importable from there."""
    paths = (str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    sources = sorted(path for path in paths if not path.startswith(ASKED_OF_OTHERS))
    code = protoc.main(
        [
            "protoc",
            f"-I{PROTO}",
            f"-I{WELL_KNOWN}",
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
