"""A real Envoy, configured by deploy/envoy/envoy.yaml, asks porteiro about every request."""

import subprocess

import pytest

from support import RULES, ROOT
from support import envoy as envoys
from support.wait import in_one_window, until


@pytest.fixture(scope="module")
def porteiro(serve):
    return serve(RULES / "edge.yaml", env={"RESPONSE_DYNAMIC_METADATA": "true"})


@pytest.fixture(scope="module")
def envoy(proxy, porteiro):
    return proxy(porteiro.grpc_port)


def statuses(envoy, count, path="/", **request):
    return [envoy.ask(path, **request).status for _ in range(count)]


def test_a_route_has_its_own_limit_for_each_address(envoy, upstream):
    assert statuses(envoy, 4, "/login/route", source="127.0.1.1") == [200, 200, 200, 429]
    assert upstream.seen["/login/route"] == 3, "a refused request does not reach the upstream"
    assert envoy.ask("/login/route", source="127.0.1.2").status == 200, "another address"
    assert envoy.ask("/other", source="127.0.1.1").status == 200, "another route"


def test_every_tenant_has_its_own_counter(envoy):
    ask = lambda count, tenant: statuses(envoy, count, headers={"x-tenant": tenant})
    assert ask(3, "ada") == [200, 200, 429]
    assert ask(3, "bob") == [200, 200, 429]
    assert ask(10, "vip") == [200] * 10, "unlimited"
    assert statuses(envoy, 10) == [200] * 10, "no header, no descriptor, no limit"


def test_the_remote_address_is_the_peer_not_a_header(envoy):
    assert statuses(envoy, 3, source="127.0.0.2") == [200, 200, 429]
    forged = {"x-forwarded-for": "127.0.0.3"}
    assert envoy.ask(source="127.0.0.2", headers=forged).status == 429
    assert envoy.ask(source="127.0.0.3").status == 200


def test_a_network_shares_one_counter(envoy):
    answers = [envoy.ask(source=f"127.77.0.{host}").status for host in (1, 2, 3, 4)]
    assert answers == [200, 200, 200, 429]
    assert envoy.ask(source="127.77.1.1").status == 200, "the next /24"


def test_a_header_match_counts_writes_only(envoy):
    answers = [envoy.ask("/form", method=method, body="x") for method in ("POST", "PUT", "DELETE")]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert envoy.ask("/form").status == 200


def test_an_answer_tells_the_state_of_the_quota(envoy):
    ask = lambda: envoy.ask(headers={"x-tenant": "headers"})
    first, second, third = ask(), ask(), ask()
    assert [answer.status for answer in (first, second, third)] == [200, 200, 429]
    remaining = [answer.header("x-ratelimit-remaining") for answer in (first, second, third)]
    assert remaining == ["1", "0", "0"]
    for answer in (first, second, third):
        assert answer.header("x-ratelimit-limit") == '2, 2;w=31536000;name="tenant"'
        assert 1 <= int(answer.header("x-ratelimit-reset")) <= 31_536_000
    for passed in (first, second):
        assert passed.header("x-envoy-ratelimited") is None
        assert passed.header("retry-after") is None
    assert third.header("x-envoy-ratelimited") == "true"
    wait, reset = int(third.header("retry-after")), int(third.header("x-ratelimit-reset"))
    assert wait in (reset, reset + 1), "the same moment, rounded up"


def test_no_limit_no_headers(envoy):
    answer = envoy.ask(source="127.0.0.9")
    assert answer.status == 200
    assert not [name for name, _ in answer.headers if name.lower().startswith("x-ratelimit")]


def test_one_refusing_descriptor_refuses_the_request(envoy):
    spent = {"x-tenant": "spent"}
    assert statuses(envoy, 3, headers=spent) == [200, 200, 429]
    answer = envoy.ask("/login/both", headers=spent, source="127.0.1.9")
    assert answer.status == 429
    assert answer.header("x-ratelimit-remaining") == "0"
    # `independent` stacking, as the reference: the descriptor that passed was charged.
    assert statuses(envoy, 3, "/login/both", source="127.0.1.9") == [200, 200, 429]


def test_the_access_log_carries_the_dynamic_metadata(envoy):
    for want in (200, 200, 429):
        assert envoy.ask("/log", headers={"x-tenant": "logged"}).status == want
    lines = lambda: [line for line in envoy.accesses() if line["path"] == "/log"]
    until(lambda: len(lines()) == 3, "three lines of access log")
    passed, _, refused = lines()
    assert (passed["status"], passed["flags"]) == (200, "-")
    assert (refused["status"], refused["flags"]) == (429, "RL")
    for line in (passed, refused):
        assert line["ratelimit"]["domain"] == "edge"
        assert {"entries": ["tenant=logged"]} in line["ratelimit"]["descriptors"]
    assert passed["ratelimit"]["metadata"] == {"plan": "free"}
    assert "metadata" not in refused["ratelimit"], "the metadata of a rule that passed"


def test_envoy_accepts_the_deployed_configuration_as_it_is():
    checked = subprocess.run(
        [envoys.binary(), "--mode", "validate", "-c", envoys.CONFIG, "--disable-hot-restart"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "Deprecated field" not in checked.stderr


def test_the_fourth_login_in_a_minute_is_a_429(serve, proxy):
    """The rules and the Envoy configuration of the README, together."""
    envoy = proxy(serve(ROOT / "deploy/envoy/rules.yaml").grpc_port)
    answers = in_one_window(60, lambda: [envoy.ask("/login") for _ in range(4)])
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    refused = answers[-1]
    assert refused.header("x-envoy-ratelimited") == "true"
    assert 1 <= int(refused.header("retry-after")) <= 60
