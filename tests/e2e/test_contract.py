"""The contract with clients, through a real Envoy: the state of the quota on every answer."""

import json
import re
import time

import pytest

from support import RULES
from support.envoy import replaced_once


@pytest.fixture(scope="module")
def envoy(serve, proxy):
    porteiro = serve(RULES / "contract.yaml")

    def change(text):
        # porteiro sends these itself, so Envoy must not.
        text = replaced_once(text, "enable_x_ratelimit_headers: DRAFT_VERSION_03", "stage: 0")
        return text

    return proxy(porteiro.grpc_port, change)


def ask(envoy, tenant):
    return envoy.ask(headers={"x-tenant": tenant})


def items(field):
    """Names and parameters of a list of strings with integer parameters."""
    found = re.findall(r'"([^"]*)"((?:;[a-z]+=[0-9]+)*)', field)
    return {name: dict(re.findall(r";([a-z]+)=([0-9]+)", rest)) for name, rest in found}


def test_a_success_and_a_refusal_tell_the_quota(envoy):
    answers = [ask(envoy, "ada") for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    for left, answer in zip((2, 1, 0, 0), answers):
        policy, limit = items(answer.header("ratelimit-policy")), items(answer.header("ratelimit"))
        assert list(policy) == ["burst", "monthly", "address"]
        assert policy["burst"] == {"q": "3", "w": "6"}
        assert set(limit) == set(policy) and list(limit)[0] == "burst", "the closest first"
        assert limit["burst"]["r"] == str(left)
        assert 1 <= int(limit["burst"]["t"]) <= 2
        assert answer.header("x-ratelimit-limit") == "3"
        assert answer.header("x-ratelimit-remaining") == str(left)
        assert 0 <= int(answer.header("x-ratelimit-reset")) - time.time() <= 7
    refused = answers[3]
    assert refused.header("retry-after") in ("1", "2")
    assert 1 <= int(refused.header("retry-after-ms")) <= 2000
    assert refused.header("x-ratelimit-reason") == "rate"
    assert refused.header("x-ratelimit-name") == "burst"
    assert refused.header("cache-control") == "no-store"
    for passed in answers[:3]:
        for name in ("retry-after", "retry-after-ms", "x-ratelimit-reason", "cache-control"):
            assert passed.header(name) is None, name


def test_a_refusal_has_a_problem_as_its_body(envoy):
    refused = next(answer for answer in (ask(envoy, "bob") for _ in range(9)) if answer.status == 429)
    assert refused.header("content-type") == "application/problem+json"
    problem = json.loads(refused.body)
    assert 0 < problem.pop("retry_after") <= 2
    assert problem == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": "You are sending too many requests.",
        "reason": "rate",
        "violated-policies": ["burst"],
    }


@pytest.mark.parametrize("unit", ("retry-after", "retry-after-ms"))
def test_waiting_that_long_is_enough(envoy, unit):
    refused = next(answer for answer in (ask(envoy, unit) for _ in range(9)) if answer.status == 429)
    # A client that does what it is told; no state of a process to poll for.
    time.sleep(int(refused.header(unit)) / (1000 if unit.endswith("ms") else 1))
    assert ask(envoy, unit).status == 200


def test_what_the_client_sends_does_not_come_back_as_a_header(envoy):
    for tenant in ("a%0d%0aset-cookie: x=1", 'q"; r=1', "\x7f", "ä"):
        for _ in range(5):
            answer = envoy.ask(headers={"x-tenant": tenant.encode("latin-1")})
            assert answer.header("set-cookie") is None
            assert answer.status in (200, 400, 429)
