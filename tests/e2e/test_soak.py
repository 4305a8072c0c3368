"""Minutes of everything at once; runs with `tests/all.sh --long`."""

import os
import random
import signal
import socket
import time

import grpc
import pytest

from support import RULES, rls
from support.load import Load
from support.memory import resident
from support.ports import free_port
from support.porteiro import Porteiro
from test_envoy_restart import clients_all_the_time, patient

pytestmark = pytest.mark.long

SECONDS = 90


def garbage(port):
    """For `Load`: connections that speak nonsense, then leave."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    def ask(number):
        head = preface if random.random() < 0.5 else b""
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
            try:
                stream.sendall(head + os.urandom(random.randrange(1, 4096)))
                stream.shutdown(socket.SHUT_WR)
                while stream.recv(65536):
                    pass
            except OSError:
                pass  # refused, as it should be

    return ask


def test_no_call_is_lost_while_everything_happens(generated, serve, proxy, folder, started):
    """Aging connections, reloads, nonsense and a new process every few seconds."""
    flags = ("--reuse-port", "--max-connection-age", "2s")
    porteiro = serve(RULES / "edge.yaml", flags=flags)
    envoy = proxy(porteiro.grpc_port, patient)
    end = time.monotonic() + SECONDS
    with Load(garbage(porteiro.grpc_port), 2) as noise:
        with clients_all_the_time(envoy, porteiro) as (through, direct):
            generation = 0
            while time.monotonic() < end:
                for _ in range(3):
                    porteiro.send(signal.SIGHUP)
                    through.pass_more(300)
                    direct.pass_more(300)
                generation += 1
                following = Porteiro(
                    folder / f"{generation}.log",
                    RULES / "edge.yaml",
                    flags=flags,
                    ports=(porteiro.grpc_port, free_port(), free_port()),
                )
                started.append(following)
                following.until_ready()
                assert porteiro.stop() == 0
                assert "panic" not in porteiro.output()
                porteiro = following
    assert noise.failures == []


def test_memory_stays_bounded_under_new_keys_and_nonsense(generated, serve, folder):
    rules = folder / "keys.yaml"
    rules.write_text("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9}}]\n")
    porteiro = serve(rules, flags=("--max-keys", "50000"))
    with rls.Client(porteiro.target) as client:

        def new_keys(_):
            values = [[("k", os.urandom(64).hex())] for _ in range(32)]
            return None if client.ask(rls.request("d", *values)).statuses else "no statuses"

        with Load(new_keys, 4) as load, Load(garbage(porteiro.grpc_port), 2):
            load.pass_more(4_000, 300)
            warm = resident(porteiro)
            load.pass_more(16_000, 900)
            assert resident(porteiro) < warm * 1.25, "640,000 keys in room for 50,000"
        assert load.failures == []


def test_damaged_messages_get_a_status(generated, serve):
    """Valid messages with a few bytes changed, cut or doubled."""
    porteiro = serve(RULES / "plain.yaml")
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    valid = rls.request("plain", [("user", "ada"), ("x", "y")], [("open", "")], hits_addend=3)
    valid.descriptors[0].limit.requests_per_unit = 4
    valid.descriptors[0].limit.unit = 2
    valid.descriptors[1].hits_addend.value = 2
    valid = valid.SerializeToString()
    expected = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
    with rls.Client(porteiro.target) as client:
        call = client.channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        )
        for _ in range(20_000):
            damaged = bytearray(valid)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(damaged))
                match chance.randrange(3):
                    case 0:
                        damaged[at] = chance.randrange(256)
                    case 1:
                        del damaged[at:]
                        damaged += b"\x0a"
                    case 2:
                        damaged[at:at] = damaged[at : at + 8]
            try:
                call(bytes(damaged), timeout=10)
            except grpc.RpcError as error:
                assert error.code() in expected, (seed, error)
        assert client.code("plain", [("open", "")]) == "OK"
