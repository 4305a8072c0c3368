"""Whatever a caller sends gets a clear answer, and the next call is answered."""

import os
import socket

import grpc
import pytest

from support import RULES, rls

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def porteiro(serve):
    return serve(RULES / "plain.yaml")


@pytest.fixture(scope="module")
def client(generated, porteiro):
    with rls.Client(porteiro.target) as client:
        yield client


@pytest.fixture(autouse=True)
def answers_the_next_call(client, porteiro):
    """After each test: the same process answers, on an old and on a new connection."""
    yield
    assert porteiro.running()
    assert client.code("plain", [("open", "")]) == "OK"
    with rls.Client(porteiro.target, [("grpc.use_local_subchannel_pool", 1)]) as fresh:
        assert fresh.code("plain", [("open", "")]) == "OK"


def with_override(**limit):
    message = rls.request("plain", [("user", "override")])
    descriptor = message.descriptors[0]
    descriptor.limit.requests_per_unit = limit["requests_per_unit"]
    descriptor.limit.unit = limit["unit"]
    return message


ONE = [("user", "a")]

BEYOND = {
    "33 descriptors": (lambda: rls.request("plain", *[ONE] * 33), INVALID, "32"),
    "17 entries": (lambda: rls.request("plain", ONE * 17), INVALID, "16"),
    "a key of 1025 bytes": (lambda: rls.request("plain", [("k" * 1025, "")]), INVALID, "1024"),
    "a value of 1025 bytes": (lambda: rls.request("plain", [("user", "v" * 1025)]), INVALID, "1024"),
    "a domain of 1025 bytes": (lambda: rls.request("d" * 1025, ONE), INVALID, "1024"),
    "a message of 1 MiB": (lambda: rls.request("plain", [("user", "v" * 2**20)]), EXHAUSTED, "65536"),
    "no domain": (lambda: rls.request("", ONE), INVALID, "domain"),
    "no descriptors": (lambda: rls.request("plain"), INVALID, "descriptor"),
    "an override without a unit": (
        lambda: with_override(requests_per_unit=5, unit=0),
        INVALID,
        "unit",
    ),
    "an override with a unit nobody knows": (
        lambda: with_override(requests_per_unit=5, unit=99),
        INVALID,
        "unit",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_beyond_a_bound(client, name):
    message, code, word = BEYOND[name]
    for _ in range(3):
        status, text = client.refused(message())
        assert status == code, text
        assert word in text, "the text names the bound or the field"


def test_up_to_the_bounds(client):
    entries = [(f"key{number}", "v" * 1024) for number in range(16)]
    assert client.code("plain", entries, entries, entries) == "OK"
    assert client.code("plain", *[[("open", str(number))] for number in range(32)]) == "OK"
    assert client.code("plain", [("k" * 1024, "")]) == "OK"


def test_a_descriptor_without_entries_matches_nothing(client):
    assert client.code("plain", []) == "OK"


def test_an_unknown_domain_is_ok(client):
    assert client.code("nobody", ONE) == "OK"


def test_a_method_that_is_not_there(client):
    call = client.channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/Nothing")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"", timeout=10)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_bytes_that_are_no_message(client):
    call = client.channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
    for body in (b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", os.urandom(512)):
        with pytest.raises(grpc.RpcError) as refused:
            call(body, timeout=10)
        assert refused.value.code() in (INVALID, grpc.StatusCode.INTERNAL)
        assert refused.value.details()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

STREAMS = {
    "random bytes": os.urandom(4096),
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "HTTP/2 with random frames": PREFACE + os.urandom(4096),
    "a frame larger than allowed": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(4096),
    "a header block of garbage": PREFACE
    + bytes.fromhex("000000040000000000")
    + bytes.fromhex("000008010500000001")
    + b"\xff" * 8,
    "half a preface": PREFACE[:10],
    "nothing": b"",
}


@pytest.mark.parametrize("name", STREAMS)
def test_bytes_that_are_no_protocol(porteiro, name):
    with socket.create_connection(("127.0.0.1", porteiro.grpc_port), timeout=10) as stream:
        try:
            stream.sendall(STREAMS[name])
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(65536):
                pass
        except TimeoutError:
            pytest.fail("the connection stayed open")
        except OSError:
            pass  # closed with our bytes unread


def test_many_connections_that_say_nothing_hold_up_nobody(porteiro, client):
    silent = [socket.create_connection(("127.0.0.1", porteiro.grpc_port)) for _ in range(200)]
    try:
        assert client.code("plain", [("open", "")]) == "OK"
        with rls.Client(porteiro.target, [("grpc.use_local_subchannel_pool", 1)]) as fresh:
            assert fresh.code("plain", [("open", "")]) == "OK"
    finally:
        for stream in silent:
            stream.close()
