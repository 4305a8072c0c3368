"""The environments of known deployments of the reference (tests/data/deployments), as they are: the
program as `ratelimit`, a real Redis, and for Envoy Gateway a control plane."""

import json
import re
import socket

import grpc
import pytest

from support import ROOT, porteiro, rls
from support.authority import Authority
from support.child import Child
from support.control_plane import ControlPlane
from support.http import ask, status_of
from support.ports import free_port
from support.wait import until
from test_reload import config_map, rules


def environment(name):
    """The variables of a deployment."""
    text = (ROOT / f"tests/data/deployments/{name}.env").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def redis(tmp_path, started):
    port = free_port()
    words = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", ""]
    started.append(Child(words, tmp_path / "redis.log"))
    return port


class Container:
    """The program as a deployment's container runs it. What a container has of its own is found
    elsewhere here: its ports, its mounts, names of other hosts."""

    def __init__(self, folder, env, redis):
        self.http, self.grpc, self.admin = (free_port() for _ in range(3))
        env |= {"PORT": str(self.http), "GRPC_PORT": str(self.grpc), "DEBUG_PORT": str(self.admin)}
        for name, value in env.items():
            env[name] = re.sub("^/(data|certs)", rf"{folder}/\1", value)
        env["REDIS_URL"] = f"127.0.0.1:{redis}"
        command = folder / "ratelimit"
        command.symlink_to(porteiro.binary())
        self.child = Child([command], folder / "container.log", env)

    def until_ready(self):
        self.child.until(lambda: status_of(self.http, "/readyz") == 200, "readiness")

    def without_effect(self):
        """What the start warning names."""
        lines = [line for line in self.child.output().splitlines() if "without effect: " in line]
        assert len(lines) <= 1, lines
        return lines[0].split("without effect: ")[1].split(", ") if lines else []

    def complaints(self):
        """Warnings and errors but that one. The store may be late on a busy machine."""
        lines = self.child.output().splitlines()
        fine = ("without effect: ", "the shared store is away")
        loud = [line for line in lines if re.search(r"\b(WARN|ERROR)\b", line)]
        return [line for line in loud if not any(text in line for text in fine)]


def until_refused(passes):
    """A limit of two hits a year: some pass, no more than two if the store was in time, then none."""
    assert passes()
    until(lambda: not passes(), "a refusal")


@pytest.mark.parametrize("name", ["istio", "contour"])
def test_a_deployment_with_a_config_map(name, redis, tmp_path, started):
    env = environment(name)
    if env.get("HOST") == "::":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("there is no IPv6 here")
    config = tmp_path / "data/ratelimit/config"
    config.mkdir(parents=True)
    config_map(config, "2026_01", rules("shop", 2))
    container = Container(tmp_path, env, redis)
    started.append(container.child)
    container.until_ready()
    assert container.without_effect() == []
    assert container.complaints() == []
    assert ask(container.http, "/healthcheck").body.strip() == b"OK"
    body = json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]})
    until_refused(lambda: ask(container.http, "/json", "POST", body=body).status == 200)
    # The kubelet swaps the volume; the place is watched, not the files.
    config_map(config, "2026_02", rules("shop", 1_000_000))
    until(lambda: ask(container.http, "/json", "POST", body=body).status == 200, "the new rules")
    assert container.child.stop() == 0


def config(domain, limit):
    """A domain as Envoy Gateway makes it: a route, then one rule that matches everything."""
    match = {"key": "rule-0-match--1", "value": "rule-0-match--1"}
    unit = {"unit": 6, "requests_per_unit": limit}  # a year
    route = {"key": "route", "value": "route", "descriptors": [match | {"rate_limit": unit}]}
    return {"name": domain, "domain": domain, "descriptors": [route]}


def test_envoy_gateway(generated, redis, tmp_path, started):
    certs = tmp_path / "certs"
    certs.mkdir()
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("ratelimit", "DNS:envoy-ratelimit,IP:127.0.0.1")
    for file, mounted in ((certificate, "tls.crt"), (key, "tls.key"), (authority.certificate, "ca.crt")):
        (certs / mounted).write_bytes(file.read_bytes())
    # The address stands for the name `envoy-gateway`, which is nobody's here.
    gateway = authority.sign("gateway", "DNS:envoy-gateway,IP:127.0.0.1")
    env = environment("envoy-gateway")
    assert env["CONFIG_GRPC_XDS_SERVER_URL"] == "envoy-gateway:18001"
    metrics = free_port()
    env["PROMETHEUS_ADDR"] = env["PROMETHEUS_ADDR"].replace("19001", str(metrics))
    with ControlPlane(tmp_path, *gateway, authority.certificate) as plane:
        env["CONFIG_GRPC_XDS_SERVER_URL"] = f"127.0.0.1:{plane.port}"
        container = Container(tmp_path, env, redis)
        started.append(container.child)
        # Its probes pass before it has rules: it was asked to start without.
        container.child.until(
            lambda: status_of(container.http, "/healthcheck") == 200, "the startup probe"
        )
        assert container.without_effect() == ["GRPC_SERVER_TLS_CA_CERT", "PROMETHEUS_MAPPER_YAML"]
        assert plane.tell("1", config("listener/http", 2)) == ("1", "nonce 1", None)
        container.until_ready()

        # The data plane shows no certificate, as with the reference, and may.
        credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        entries = [("route", "route"), ("rule-0-match--1", "rule-0-match--1")]
        with rls.Client(f"127.0.0.1:{container.grpc}", credentials=credentials) as client:
            until_refused(lambda: client.code("listener/http", entries) == "OK")
            version, _, error = plane.tell("2", config("listener/http", 5) | {"domain": ""})
            assert version == "1" and error
            assert client.code("listener/http", entries) == "OVER_LIMIT"
            assert plane.tell("3", config("listener/http", 1_000_000))[2] is None
            assert client.code("listener/http", entries) == "OK"
        page = ask(metrics, "/metrics").body.decode()
        assert "ratelimit_service_config_load_error 1\n" in page
        label = 'domain="listener/http",key1="route_route",key2="rule-0-match--1_rule-0-match--1"'
        assert f"ratelimit_service_rate_limit_over_limit{{{label}}}" in page, page
    # Without its control plane it goes on with what it has.
    assert status_of(container.http, "/healthcheck") == 200
    assert container.child.stop() == 0

