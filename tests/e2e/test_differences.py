"""What differs from envoyproxy/ratelimit on purpose (README) and is seen only in a whole process."""

import signal
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support import rls
from support.porteiro import Porteiro, run
from support.http import status_of
from support.wait import until


@pytest.fixture(scope="module")
def porteiro(serve, folder):
    rules = folder / "rules.yaml"
    rules.write_text(
        "domain: d\n"
        "descriptors:\n"
        "  - {key: red_car, rate_limit: {unit: year, requests_per_unit: 1}}\n"
        "  - {key: red, rate_limit: {unit: year, requests_per_unit: 2}}\n"
        "  - {key: most, rate_limit: {unit: year, requests_per_unit: 4294967295}}\n"
        "  - {key: shown, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}\n"
        "  - key: a\n"
        "    descriptors: [{key: b, rate_limit: {unit: year, requests_per_unit: 1}}]\n"
    )
    return serve(rules)


@pytest.fixture(scope="module")
def client(generated, porteiro):
    with rls.Client(porteiro.target) as client:
        yield client


def test_no_two_descriptors_share_a_counter(client):
    limit = lambda *entries: client.ask(rls.request("d", entries)).statuses[0].current_limit
    assert limit(("red_car", "")).requests_per_unit == 1
    assert limit(("red", "car")).requests_per_unit == 2
    # Joined with underscores these two are one text.
    assert client.code("d", [("a", "x_b"), ("b", "y")]) == "OK"
    assert client.code("d", [("a", "x"), ("b", "b_y")]) == "OK"
    assert client.code("d", [("a", "x"), ("b", "b_y")]) == "OVER_LIMIT"


def test_a_sum_of_hits_saturates(client, generated):
    def ask(hits):
        message = rls.request("d", [("most", "")])
        message.descriptors[0].hits_addend.value = hits
        answer = client.ask(message)
        return type(answer).Code.Name(answer.overall_code)

    assert ask(2**32 - 1) == "OK"
    assert [ask(2**64 - 1) for _ in range(3)] == ["OVER_LIMIT"] * 3
    assert ask(1) == "OVER_LIMIT", "the counter did not wrap"


def test_statistics_under_texts_of_requests_are_bounded(client, porteiro):
    for start in range(0, 12_800, 32):
        values = [[("shown", str(number))] for number in range(start, start + 32)]
        client.ask(rls.request("d", *values))
    page = porteiro.admin("/metrics").body.decode()
    paths = [line for line in page.splitlines() if "rate_limit_total_hits{" in line]
    assert len(paths) <= 10_000 + 10
    others = porteiro.metric('ratelimit_service_rate_limit_total_hits{domain="d",key1="other"}')
    assert others >= 2_000, "the rest is counted together"


def test_without_rules_calls_are_unavailable(generated, serve, tmp_path, started):
    (tmp_path / "bad.yaml").write_text("domain: d\ndescriptors: [{value: v}]\n")
    env = {"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}
    log = tmp_path / "porteiro.log"
    porteiro = Porteiro(log, tmp_path, flags=("--ready-needs-rules",), env=env)
    started.append(porteiro)
    porteiro.until(lambda: status_of(porteiro.http_port, "/livez") == 200, "life")
    assert status_of(porteiro.http_port, "/readyz") == 503
    with rls.Client(porteiro.target) as client:
        status, text = client.refused(rls.request("d", [("k", "v")]))
        assert status == grpc.StatusCode.UNAVAILABLE and "rules" in text
        health = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "ratelimit"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        (tmp_path / "bad.yaml").write_text("domain: d\ndescriptors: [{key: k}]\n")
        until(lambda: status_of(porteiro.http_port, "/readyz") == 200, "readiness with rules")
        assert client.code("d", [("k", "v")]) == "OK"


def test_control_characters_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text('domain: d\ndescriptors: [{key: "k\\r\\nset-cookie: x"}]\n')
    done = run("check", tmp_path)
    assert done.returncode == 64
    assert "a.yaml:2" in done.stdout and "control character" in done.stdout
    assert "\r" not in done.stdout


def test_a_port_that_is_taken_is_named(porteiro, tmp_path):
    again = Porteiro(tmp_path / "again.log", tmp_path, ports=(porteiro.grpc_port, 0, 0))
    assert again.wait() not in (0, 101)
    assert str(porteiro.grpc_port) in again.output()


def test_health_turns_before_the_process_ends(generated, serve, tmp_path):
    (tmp_path / "a.yaml").write_text("domain: d\ndescriptors: [{key: k}]\n")
    porteiro = serve(tmp_path, flags=("--drain-delay", "1s"))
    with rls.Client(porteiro.target) as client:
        health = health_pb2_grpc.HealthStub(client.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="ratelimit"), timeout=20)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        porteiro.send(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert status_of(porteiro.http_port, "/readyz") == 503
        assert client.code("d", [("k", "v")]) == "OK", "it still serves"
        watch.cancel()
    assert porteiro.wait() == 0


PING = b"unfinish"


def unfinished_call():
    """The bytes of an HTTP/2 connection with a call whose message never comes, and a PING."""

    def text(value):
        return bytes([len(value)]) + value

    path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    headers = (
        b"\x83\x86"  # :method POST, :scheme http
        + b"\x04" + text(path)
        + b"\x01" + text(b"porteiro")
        + b"\x0f\x10" + text(b"application/grpc")
        + b"\x00" + text(b"te") + text(b"trailers")
    )

    def frame(kind, flags, stream, payload=b""):
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        return head + payload

    settings, end_of_headers = frame(4, 0, 0), frame(1, 4, 1, headers)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + settings + end_of_headers + frame(6, 0, 0, PING)


def test_a_call_that_never_ends_is_cut_at_the_deadline(serve, tmp_path):
    (tmp_path / "a.yaml").write_text("domain: d\ndescriptors: [{key: k}]\n")
    porteiro = serve(tmp_path, flags=("--drain-deadline", "300ms"))
    with socket.create_connection(("127.0.0.1", porteiro.grpc_port), timeout=10) as stream:
        stream.sendall(unfinished_call())
        answered = b""
        while PING not in answered:  # what was sent before the PING has been read
            answered += stream.recv(4096)
        assert porteiro.stop() == 75
