"""Clients run all the time while porteiro restarts or ages its connections: no call is lost."""

import contextlib

from support import RULES, rls
from support.envoy import replaced_once
from support.load import Load, through_envoy
from support.porteiro import Porteiro
from support.ports import free_port
from support.wait import until
from test_envoy_failure import closed


def patient(config):
    """Fail closed, so that a lost call shows, and with time for a busy machine: a call that is
    merely late is not what these tests look for."""
    return closed(replaced_once(config, "timeout: 0.1s ", "timeout: 5s "))


@contextlib.contextmanager
def clients_all_the_time(envoy, porteiro):
    """Loads through Envoy and straight over gRPC."""
    with rls.Client(porteiro.target) as client:
        message = rls.request("edge", [("tenant", "vip")])

        def straight(_):
            answer = client.ask(message)
            return None if answer.overall_code == 1 else f"code {answer.overall_code}"

        with Load(through_envoy(envoy.port), 4) as through, Load(straight, 2) as direct:
            through.pass_more(50)
            direct.pass_more(50)
            yield through, direct
            through.pass_more(50)
            direct.pass_more(50)
        assert direct.failures == []
        assert through.failures == [], envoy.stats("cluster.porteiro.")


def test_a_new_process_takes_over_the_port(generated, serve, proxy, folder, started):
    """Start the next one on the same gRPC port, wait until it is ready, SIGTERM the old one."""
    flags = ("--reuse-port",)
    porteiro = serve(RULES / "edge.yaml", flags=flags)
    envoy = proxy(porteiro.grpc_port, patient)
    with clients_all_the_time(envoy, porteiro) as (through, direct):
        for generation in range(4):
            ports = porteiro.grpc_port, free_port(), free_port()
            following = Porteiro(
                folder / f"{generation}.log", RULES / "edge.yaml", flags=flags, ports=ports
            )
            started.append(following)
            following.until_ready()
            through.pass_more(20)
            assert porteiro.stop() == 0, "drained in peace"
            through.pass_more(100)
            direct.pass_more(100)
            porteiro = following


def test_one_of_two_endpoints_goes(generated, serve, proxy, started):
    """Two processes behind one cluster, as in a rolling update: the one that stops says NOT_SERVING
    while it still serves, until Envoy's health check (every 2 s) has seen it."""
    leaving = serve(RULES / "edge.yaml", flags=("--drain-delay", "3s"))
    staying = serve(RULES / "edge.yaml")

    def both(config):
        one = f"- endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {leaving.grpc_port}}}}}}}"
        other = one.replace(str(leaving.grpc_port), str(staying.grpc_port))
        return patient(replaced_once(config, one, f"{one}\n        {other}"))

    envoy = proxy(leaving.grpc_port, both)
    with clients_all_the_time(envoy, staying) as (through, _):
        until(lambda: calls(leaving) > 20 and calls(staying) > 20, "calls at both")
        assert leaving.stop() == 0, "drained in peace"
        through.pass_more(200)


def calls(porteiro):
    """How many decisions it was asked for."""
    return porteiro.metric(TOTAL) or 0


TOTAL = 'ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}'


def test_connections_age_under_load(generated, serve, proxy):
    """Every connection ends after its age with a GOAWAY, and nobody notices."""
    porteiro = serve(RULES / "edge.yaml", flags=("--max-connection-age", "300ms"))
    envoy = proxy(porteiro.grpc_port, patient)
    with clients_all_the_time(envoy, porteiro) as (through, _):
        closings = lambda: envoy.stat("cluster.porteiro.upstream_cx_close_notify")
        until(lambda: closings() >= 10, "ten GOAWAYs at Envoy", 30)
        through.pass_more(100)
