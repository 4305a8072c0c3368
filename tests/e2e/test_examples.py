"""The contracts of deploy/examples through a real Envoy, one pass each: what only Envoy can show. The
numbers and times are tested in tests/suite/examples with a clock moved by hand."""

import json
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import ROOT, porteiro
from support.child import Child
from support.envoy import ADMIN, DOOR, PORTEIRO, UPSTREAM, binary
from support.http import ask, status_of
from support.ports import free_port
from support.wait import until

EXAMPLES = ROOT / "deploy/examples"


def blocks(name):
    """The commands of an example's README: what it starts, and what is asked then."""
    readme = (EXAMPLES / name / "README.md").read_text()
    start, *asked = re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    return start, asked


class Door:
    """An example: its rules, its Envoy, and the stand-in behind it."""

    def __init__(self, name, folder, started, serve):
        self.name = name
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

    def until_refused(self, path, **request):
        """Asks until it is refused; how many passed, and the refusal."""
        for passed in range(1000):
            answer = self.ask(path, **request)
            if answer.status == 429:
                return passed, answer
            assert answer.status == 200, answer
        raise AssertionError("all passed")

    def at_once(self, count, path, **request):
        """The answers to so many requests from a handful of clients."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda _: self.ask(path, **request), range(count)))

    def follow(self):
        """What the commands of the README show."""
        ports = {":10000/": f":{self.port}/", ":8080/": f":{self.limiter.http_port}/"}
        output = ""
        for block in blocks(self.name)[1]:
            for port, other in ports.items():
                block = block.replace(port, other)
            words = ["bash", "-euo", "pipefail", "-c", block]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            output += done.stdout
        return output


@pytest.fixture(scope="module")
def door(folder, started, serve):
    return lambda name: Door(name, folder, started, serve)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_check_has_nothing_to_say(name):
    done = porteiro.run("check", EXAMPLES / name / "rules")
    assert done.returncode == 0
    assert " 0 errors, 0 warnings" in done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_the_readme_starts_its_own_files(name):
    serve, envoy = blocks(name)[0].splitlines()
    assert serve == f"cargo run -- serve --config deploy/examples/{name}/rules"
    assert envoy == f"envoy -c deploy/examples/{name}/envoy.yaml"


def test_chat(door):
    chat = door("chat")
    bot = {"x_identity": "9/bot", "x_credential": "bot"}
    seen = chat.ask("/guilds/17/emojis", **bot)
    assert seen.header("x-ratelimit-limit") == "30"
    assert seen.header("x-ratelimit-remaining") == "29"
    bucket = seen.header("x-ratelimit-bucket")
    assert re.fullmatch("[0-9a-f]{16}", bucket)
    # A caller without an account, by address; a success tells nothing.
    passed, refused = chat.until_refused("/guilds/17/emojis?x=1", accept_language="pt-BR")
    assert passed >= 30
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
    # From a handful of clients, each request another guild's.
    me = {"x_identity": "5/session", "x_credential": "session"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: chat.ask(f"/guilds/{n}/emojis", **me), range(300)))
    over = next(answer for answer in answers if answer.status == 429)
    assert over.header("x-ratelimit-global") == "true"
    assert over.header("x-ratelimit-scope") == "global"
    assert over.header("x-ratelimit-limit") is None
    assert json.loads(over.body)["global"] is True
    hook = chat.ask("/webhooks/3/token", method="POST")
    assert (hook.status, hook.header("x-ratelimit-limit")) == (200, "5")
    # Second buckets, flags, routes without a bucket.
    me = {"x_identity": "6/session", "x_credential": "session"}
    passed, refused = chat.until_refused("/users/@me/channels", method="POST", **me)
    assert passed >= 10 and refused.header("x-ratelimit-limit") == "10"
    free = me | {"x_account_flags": "A|RATE_LIMIT_BYPASS"}
    assert all(chat.ask("/users/@me/channels", method="POST", **free).status == 200 for _ in range(15))
    assert all(chat.ask("/desktop/downloads/x").status == 200 for _ in range(5))
    assert "429" in chat.follow()


def test_github_style(door):
    api = door("github-style")

    def told(answer):
        names = ("limit", "remaining", "used", "resource")
        return [answer.header(f"x-ratelimit-{name}") for name in names]

    assert told(api.ask("/")) == ["60", "59", "1", "core"]
    assert told(api.ask("/", x_client="enterprise_app/acme")) == ["15000", "14999", "1", "core"]
    ann = {"x_client": "user/ann"}
    assert told(api.ask("/", **ann)) == ["5000", "4999", "1", "core"]
    passed, refused = api.until_refused("/", method="POST", **ann)
    assert passed >= 80
    assert 1 <= int(refused.header("retry-after")) <= 60
    assert told(refused) == ["5000", str(4999 - passed), str(1 + passed), "core"]
    assert json.loads(refused.body)["message"] == "You have exceeded a secondary rate limit."
    assert api.ask("/", **ann).status == 200, "a read"
    # Sixty an hour; every permit came back.
    passed, refused = api.until_refused("/")
    assert passed == 59
    assert 3500 <= int(refused.header("retry-after")) <= 3600
    until(lambda: in_flight(api) == 0, "permits that come back")
    assert "429" in api.follow()


def in_flight(door):
    page = door.limiter.admin("/metrics").body.decode().splitlines()
    lines = [line for line in page if line.startswith("porteiro_concurrency_in_flight{")]
    assert lines
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_stripe_style(door):
    api = door("stripe-style")
    live = {"x_account": "acct_1", "x_mode": "live"}
    seen = api.ask("/v1/charges", method="POST", **live)
    assert seen.status == 200
    assert not [name for name, _ in seen.headers if "ratelimit" in name.lower()]
    def names(count, path, **request):
        answers = api.at_once(count, path, **request)
        return Counter(answer.header("x-ratelimit-name") for answer in answers)

    seen = names(80, "/v1/charges/search?query=x", **live)
    assert set(seen) == {None, "endpoint-rate"} and 20 <= seen[None] < 80
    seen = names(150, "/v1/charges", **live | {"x_mode": "test"})
    assert set(seen) == {None, "global-rate"} and 25 <= seen[None] < 150
    entries = [{"key": "update", "value": "payment_intent"}, {"key": "id", "value": "pi_17"}]
    thousand = {"domain": "stripe-style", "descriptors": [{"entries": entries, "hitsAddend": "1000"}]}
    assert ask(api.limiter.http_port, "/json", "POST", body=json.dumps(thousand)).status == 200
    over = api.ask("/v1/payment_intents/pi_17", method="POST", **live)
    assert over.header("x-ratelimit-name") == "resource-specific"
    assert json.loads(over.body)["error"]["reason"] == "resource-specific"
    assert api.ask("/v1/payment_intents/pi_18", method="POST", **live).status == 200
    until(lambda: in_flight(api) == 0, "permits that come back")
    assert "429" in api.follow()


def test_marketplace(door):
    api = door("marketplace")
    who = {"x_partner": "p1", "x_key_id": "k1"}
    for plan, minute, day in (("free", 60, 1000), ("pro", 600, 50000), ("enterprise", 6000, 1000000)):
        answer = api.ask("/", x_plan=plan, **who)
        policy = answer.header("ratelimit-policy")
        want = rf'"{plan}-minute";q={minute};w=60;pk=:[^:]+:, "{plan}-day";q={day};w=86400;pk=:[^:]+:'
        assert re.fullmatch(want, policy)
        assert f'"{plan}-minute";r={minute - 1};t=' in answer.header("ratelimit")
    passed, refused = api.until_refused("/", x_plan="free", **who)
    assert passed >= 59
    assert refused.header("content-type") == "application/problem+json"
    problem = json.loads(refused.body)
    assert (problem["status"], problem["violated-policies"]) == (429, ["free-minute"])
    assert api.ask("/", x_plan="pro", **who).status == 200
    assert "429" in api.follow()


def test_sms_guard(door):
    sms = door("sms-guard")

    def send(number, messages):
        return sms.ask("/send", x_number=number, x_messages=str(messages))

    for passed in range(100):
        refused = send(f"+{passed}", 5)
        if refused.status != 200:
            break
    assert passed >= 4
    assert refused.status == 429
    assert refused.header("x-ratelimit-name") == "messages-a-second"
    assert refused.header("x-ratelimit-reason") == "shared"
    assert 'q=5000;qu="messages";w=86400' in refused.header("ratelimit-policy")
    # The first number has had its five.
    over = send("+0", 1)
    assert (over.status, over.header("x-ratelimit-name")) == (429, "number-hour")
    assert sms.ask("/send", x_number="+1").status == 400
    assert "429" in sms.follow()
    # Without porteiro nothing is sent.
    until(lambda: in_flight(sms) == 0, "permits that come back")
    sms.limiter.stop()
    assert send("+99", 1).status == 503
