"""The contracts of deploy/examples through a real Envoy, one pass each: what only Envoy can show. The
numbers and times are tested in tests/suite/examples with a clock moved by hand."""

import json
import re

import pytest

from support import ROOT, porteiro
from support.child import Child
from support.envoy import ADMIN, DOOR, PORTEIRO, UPSTREAM, binary
from support.http import ask, status_of
from support.ports import free_port

EXAMPLES = ROOT / "deploy/examples"


class Door:
    """An example: its rules, its Envoy, and the stand-in behind it."""

    def __init__(self, name, folder, started, serve):
        self.limiter = serve(EXAMPLES / name / "rules")
        ports = {port: free_port() for port in (DOOR, ADMIN, UPSTREAM)}
        ports[PORTEIRO] = self.limiter.grpc_port
        self.port = ports[DOOR]
        text = (EXAMPLES / name / "envoy.yaml").read_text()
        found = {int(port) for port in re.findall(r"\bport_value: (\d+)", text)}
        assert found == set(ports)
        text = re.sub(r"\bport_value: (\d+)", lambda m: f"port_value: {ports[int(m[1])]}", text)
        config = folder / f"{name}.yaml"
        config.write_text(text)
        words = [binary(), "-c", config, "--disable-hot-restart", "--concurrency", "1"]
        envoy = Child([*words, "--log-level", "warning"], folder / f"{name}.log")
        started.append(envoy)
        envoy.until(lambda: status_of(ports[ADMIN], "/ready") == 200, "Envoy's readiness", 30.0)

    def ask(self, path, method="GET", source=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.port, path, method=method, headers=headers, source=source)

    def until_refused(self, most, path, **request):
        """Asks until it is refused; how many passed, and the refusal."""
        for passed in range(most + 1):
            answer = self.ask(path, **request)
            if answer.status == 429:
                return passed, answer
            assert answer.status == 200, answer
        raise AssertionError(f"{most} passed")


@pytest.fixture(scope="module")
def door(folder, started, serve):
    return lambda name: Door(name, folder, started, serve)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_check_has_nothing_to_say(name):
    done = porteiro.run("check", EXAMPLES / name / "rules")
    assert done.returncode == 0
    assert " 0 errors, 0 warnings" in done.stdout + done.stderr


def test_chat(door):
    chat = door("chat")
    bot = {"x_identity": "9/bot", "x_credential": "bot"}
    seen = chat.ask("/guilds/17/emojis", **bot)
    assert seen.header("x-ratelimit-limit") == "30"
    assert seen.header("x-ratelimit-remaining") == "29"
    bucket = seen.header("x-ratelimit-bucket")
    assert re.fullmatch("[0-9a-f]{16}", bucket)
    # A caller without an account, by address; a success tells nothing.
    passed, refused = chat.until_refused(40, "/guilds/17/emojis?x=1", accept_language="pt-BR")
    assert 30 <= passed < 40
    assert refused.header("x-ratelimit-bucket") == bucket
    assert refused.header("x-ratelimit-scope") == "user"
    assert refused.header("retry-after") == "1"
    assert refused.header("content-type") == "application/json"
    body = json.loads(refused.body)
    assert 0.001 <= body.pop("retry_after") <= 0.334
    message = "Você está enviando requisições demais."
    assert body == {"code": "RATE_LIMITED", "message": message, "global": False}
    assert chat.ask("/guilds/18/emojis").all("x-ratelimit-limit") == []
    assert chat.ask("/guilds/17/emojis", source="127.0.0.2").status == 200
    # The global bucket: over many guilds; no route's header. Exempt routes go on.
    for n in range(400):
        over = chat.ask(f"/guilds/{n}/emojis", x_identity="5/session", x_credential="session")
        if over.status == 429:
            break
    assert over.header("x-ratelimit-global") == "true"
    assert over.header("x-ratelimit-scope") == "global"
    assert over.header("x-ratelimit-limit") is None
    assert json.loads(over.body)["global"] is True
    hook = chat.ask("/webhooks/3/token", method="POST")
    assert (hook.status, hook.header("x-ratelimit-limit")) == (200, "5")
    # Second buckets, flags, routes without a bucket.
    me = {"x_identity": "6/session", "x_credential": "session"}
    passed, refused = chat.until_refused(20, "/users/@me/channels", method="POST", **me)
    assert 10 <= passed <= 12 and refused.header("x-ratelimit-limit") == "10"
    free = me | {"x_account_flags": "A|RATE_LIMIT_BYPASS"}
    assert all(chat.ask("/users/@me/channels", method="POST", **free).status == 200 for _ in range(15))
    assert all(chat.ask("/desktop/downloads/x").status == 200 for _ in range(5))
