"""The program under test as a process."""

import os
import subprocess
from pathlib import Path

from support import ROOT
from support.child import Child, plain_environment
from support.http import ask, status_of
from support.ports import free_port


def binary():
    """`PORTEIRO_BIN`, which tests/all.sh sets, or the last debug build."""
    path = Path(os.environ.get("PORTEIRO_BIN", ROOT / "target/debug/porteiro"))
    assert path.exists(), f"{path} is missing: run `cargo build`, or tests/all.sh"
    return path


class Porteiro(Child):
    """`porteiro serve` on free ports, or on `ports` (gRPC, HTTP, admin).

    `config` is a file or directory; None leaves the rules to `env` or to the quickstart.
    """

    def __init__(self, log, config=None, flags=(), env=None, ports=None):
        self.grpc_port, self.http_port, self.admin_port = ports or [free_port() for _ in range(3)]
        argv = [binary(), "serve"]
        if config is not None:
            argv += ["--config", config]
        for flag, port in (
            ("--grpc", self.grpc_port),
            ("--http", self.http_port),
            ("--admin", self.admin_port),
        ):
            argv += [flag, f"127.0.0.1:{port}"]
        super().__init__([*argv, *flags], log, env)

    @property
    def target(self):
        return f"127.0.0.1:{self.grpc_port}"

    def until_ready(self):
        self.until(lambda: status_of(self.http_port, "/readyz") == 200, "readiness")

    def admin(self, path, **request):
        return ask(self.admin_port, path, **request)

    def metric(self, line):
        """The value of one line of /metrics, named as it is printed; None when it is not there."""
        for text in self.admin("/metrics").body.decode().splitlines():
            name, _, value = text.rpartition(" ")
            if name == line:
                return float(value)
        return None


def run(*words, env=None, cwd=None, timeout=60):
    """Runs a subcommand to its end."""
    return subprocess.run(
        [str(binary()), *map(str, words)],
        env=plain_environment(env),
        cwd=cwd,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
