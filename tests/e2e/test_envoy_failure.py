"""What clients of Envoy see while porteiro is gone, and after it came back."""

import signal

from support import RULES
from support.envoy import replaced_once
from support.porteiro import Porteiro
from support.ports import free_port
from support.wait import until


def closed(config):
    """The configuration that refuses when porteiro does not answer."""
    return replaced_once(config, "failure_mode_deny: false", "failure_mode_deny: true")


def test_failure_mode(serve, proxy, folder, started, upstream):
    porteiro = serve(RULES / "edge.yaml")
    fail_open, fail_closed = proxy(porteiro.grpc_port), proxy(porteiro.grpc_port, closed)
    for envoy in (fail_open, fail_closed):
        assert envoy.ask("/up").status == 200

    porteiro.stop(signal.SIGKILL)

    for _ in range(20):
        assert fail_open.ask("/down/open").status == 200
        assert fail_closed.ask("/down/closed").status == 503
    assert upstream.seen["/down/open"] == 20
    assert upstream.seen["/down/closed"] == 0
    assert fail_open.stat("cluster.upstream.ratelimit.failure_mode_allowed") == 20
    assert fail_closed.stat("cluster.upstream.ratelimit.error") == 20
    lines = lambda: [line for line in fail_closed.accesses() if line["path"] == "/down/closed"]
    until(lambda: len(lines()) == 20, "twenty lines of access log")
    assert {line["flags"] for line in lines()} == {"RLSE"}

    ports = porteiro.grpc_port, porteiro.http_port, porteiro.admin_port
    again = Porteiro(folder / "again.log", RULES / "edge.yaml", ports=ports)
    started.append(again)
    again.until_ready()
    until(lambda: fail_closed.ask("/back").status == 200, "calls after the return")
    # Counters in memory ended with the process, and the limits hold again.
    answers = [fail_closed.ask(headers={"x-tenant": "back"}).status for _ in range(3)]
    assert answers == [200, 200, 429]


def test_envoy_may_start_before_porteiro(proxy, folder, started):
    ports = [free_port() for _ in range(3)]
    envoy = proxy(ports[0], closed)
    assert envoy.ask().status == 503
    porteiro = Porteiro(folder / "late.log", RULES / "edge.yaml", ports=ports)
    started.append(porteiro)
    porteiro.until_ready()
    until(lambda: envoy.ask().status == 200, "the first allowed request")
