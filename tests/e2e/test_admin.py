"""What an operator sees: rules with their places, metrics under the reference's names."""

import json
import re

import pytest

from support import RULES, rls
from support.http import ask, status_of
from support.ports import free_port


@pytest.fixture(scope="module")
def metrics_port():
    return free_port()


@pytest.fixture(scope="module")
def porteiro(serve, metrics_port):
    env = {"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": f"127.0.0.1:{metrics_port}"}
    return serve(RULES / "edge.yaml", env=env)


def test_rules_are_shown_with_file_and_line(porteiro):
    shown = json.loads(porteiro.admin("/rules").body)
    text = (RULES / "edge.yaml").read_text().splitlines()
    rules = {rule["path"]: rule for rule in shown["rules"]["edge"]}
    assert len(rules) == 6
    login = rules["edge.route_login.remote_address"]
    assert login["file"] == str(RULES / "edge.yaml")
    assert text[login["line"] - 1].strip() == "- key: remote_address"
    assert login["limits"][0]["name"] == "login" and login["limits"][0]["units"] == 3
    assert rules["edge.tenant_vip"]["unlimited"] is True


def test_metrics_have_the_names_of_the_reference(generated, porteiro):
    with rls.Client(porteiro.target) as client:
        codes = [client.code("edge", [("tenant", "ada")]) for _ in range(3)]
        assert codes == ["OK", "OK", "OVER_LIMIT"]
        client.refused(rls.request("", [("tenant", "ada")]))
    labels = '{domain="edge",key1="tenant"}'
    for name, want in (
        ("rate_limit_total_hits" + labels, 3),
        ("rate_limit_within_limit" + labels, 2),
        ("rate_limit_over_limit" + labels, 1),
        ('total_requests{grpc_method="ShouldRateLimit"}', 4),
        ('response_time_seconds_count{grpc_method="ShouldRateLimit"}', 4),
        ('should_rate_limit_error{err_type="service_error"}', 1),
        ("config_load_success", 1),
    ):
        assert porteiro.metric(f"ratelimit_service_{name}") == want, name


def test_the_metrics_page_is_well_formed(porteiro):
    line = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_0-9]+="[^"\n]*",?)+\})? [-+0-9.eEInfNa]+')
    page = porteiro.admin("/metrics").body.decode()
    for text in page.splitlines():
        assert text.startswith(("# HELP ", "# TYPE ")) or line.fullmatch(text), text


def test_the_metrics_port_has_nothing_but_metrics(porteiro, metrics_port):
    assert b"ratelimit_service_config_load_success" in ask(metrics_port, "/metrics").body
    for path in ("/", "/rules", "/log-level", "/debug/pprof/"):
        assert status_of(metrics_port, path) == 404, path


def test_operators_have_a_port_of_their_own(porteiro):
    for path in ("/rules", "/metrics", "/log-level"):
        assert porteiro.admin(path).status == 200, path
        assert status_of(porteiro.http_port, path) == 404, path


def test_the_log_level_changes_while_it_runs(porteiro):
    assert porteiro.admin("/log-level").body.strip() == b"info"
    assert porteiro.admin("/log-level", method="PUT", body="debug").status == 200
    assert porteiro.admin("/log-level").body.strip() == b"debug"
    assert porteiro.admin("/log-level", method="PUT", body="loud").status == 400
    assert porteiro.admin("/log-level", method="PUT", body="info").status == 200
