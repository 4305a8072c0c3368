"""The example clients of deploy/clients/, each set up by the commands of its README and run against the binary."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from support import ROOT
from support.child import Child
from support.limiter import Limiter
from support.porteiro import run
from support.ports import free_port
from support.wait import until

CLIENTS = ROOT / "deploy/clients"

INSTALLED = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "clients"
"""What the commands of the READMEs install stays here: a copy of the folders, from run to run."""

LANGUAGES = ("python", "node", "go")


def commands(language):
    """The lines of the only shell block of a README."""
    [block] = re.findall(r"^```sh\n(.*?)^```$", (CLIENTS / language / "README.md").read_text(), re.M | re.S)
    return block.splitlines()


def checkout(language, lock):
    """A copy of the client and of proto/, side by side as in a checkout. Whether what was installed
    there is of the same `lock` file comes with it."""
    here = INSTALLED / "deploy/clients" / language
    source = CLIENTS / language
    same = (here / lock).exists() and (here / lock).read_text() == (source / lock).read_text()
    if not same:
        shutil.rmtree(here, ignore_errors=True)
    ignore = shutil.ignore_patterns("node_modules", "generated", "api", "__pycache__")
    shutil.copytree(source, here, ignore=ignore, dirs_exist_ok=True)
    shutil.copytree(ROOT / "proto", INSTALLED / "proto", dirs_exist_ok=True)
    return here, same


def shell(command, folder, path=(), **env):
    """Runs a command line of a README, with more folders in front of PATH."""
    search = os.pathsep.join([*map(str, path), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": search} | env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def python():
    """In a virtual environment of its own: its packages are those of its requirements.txt."""
    install, generate, example = commands("python")
    here, same = checkout("python", "requirements.txt")
    programs = here / "venv/bin"
    if not same or not programs.exists():
        subprocess.run([sys.executable, "-m", "venv", here / "venv"], check=True)
        shell(install, here, [programs])
    shell(generate, here, [programs])
    return [programs / "python", example.split()[1]], here


def node():
    install, example = commands("node")
    here, same = checkout("node", "package-lock.json")
    if not same or not (here / "node_modules").exists():
        shell(install, here)
    return example.split()[:2], here


def go():
    """`protoc` is the one of the suite's grpcio-tools."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (CLIENTS / "go/go.mod").read_text(), re.M).groups()
    if not shutil.which("go"):
        pytest.skip(f"the Go client was left out: it takes Go {'.'.join(wanted)}, and there is no Go here")
    found = re.search(r"go(\d+)\.(\d+)", shell("go env GOVERSION", ROOT, GOTOOLCHAIN="local")).groups()
    if tuple(map(int, found)) < tuple(map(int, wanted)):
        pytest.skip(f"the Go client was left out: it takes Go {'.'.join(wanted)}, here is {'.'.join(found)}")
    install, generate, example = commands("go")
    assert example.startswith("go run . ")
    here, _ = checkout("go", "go.sum")
    programs = here / "bin"
    programs.mkdir(exist_ok=True)
    protoc = programs / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    shell(install, here, GOBIN=str(programs))
    shell(generate, here, [programs])
    shell("go vet . && go build -o bin/polite .", here)
    return [programs / "polite"], here


class Example:
    """Starts one of the examples and reads what it says."""

    def __init__(self, language, command, folder, log, started):
        self.language = language
        self._command, self._folder, self._log, self._started = command, folder, log, started

    def start(self, target, upstream, *flags, **options):
        words = [f"--{name}={value}" for name, value in options.items()]
        words += [f"--target={target}", f"--upstream={upstream}", *flags]
        log = self._log / f"{self.language}-{len(self._started)}.log"
        child = Child([*self._command, *words], log, cwd=self._folder)
        self._started.append(child)
        return child

    def run(self, *words, **options):
        """Runs it to its end: the exit code and the events."""
        child = self.start(*words, **options)
        until(lambda: not child.running(), "the end of the client", 60)
        return child.process.returncode, events(child)


def events(child):
    """What a client said so far."""
    lines = child.output().splitlines(keepends=True)
    assert all(line.startswith("{") for line in lines), child.output()
    return [json.loads(line) for line in lines if line.endswith("\n")]


def names(said):
    return [event["event"] for event in said]


@pytest.fixture(scope="module")
def examples():
    return {"python": python, "node": node, "go": go}


@pytest.fixture(scope="module", params=LANGUAGES)
def example(request, examples, folder, started):
    command, here = examples[request.param]()
    return Example(request.param, command, here, folder, started)


@pytest.fixture(scope="module")
def porteiro(serve):
    return serve(CLIENTS / "rules.yaml")


@pytest.fixture(scope="module")
def limiter(generated, porteiro):
    with Limiter(porteiro.target, "clients") as limiter:
        yield limiter


@pytest.fixture
def key(request, example):
    """An upstream that no other test uses."""
    return ("upstream", f"{request.node.originalname}-{example.language}")


def test_the_rules_are_good():
    assert run("check", CLIENTS / "rules.yaml").returncode == 0


def test_the_readmes_start_porteiro_with_these_rules():
    for language in LANGUAGES:
        assert "porteiro serve --config deploy/clients/rules.yaml" in (CLIENTS / language / "README.md").read_text()


def test_a_grant_and_its_release(example, porteiro, limiter, key):
    client = example.start(porteiro.target, key[1], work=0.4)
    client.until(lambda: limiter.in_flight(key) == 1, "the permit")
    until(lambda: not client.running(), "the end of the client")
    assert client.process.returncode == 0
    assert [(event["event"], event.get("status")) for event in events(client)] == [
        ("granted", None),
        ("released", "RELEASED"),
        ("done", None),
    ]
    assert limiter.in_flight(key) == 0


def test_a_refusal_is_retried_after_the_hint(example, porteiro, limiter, key):
    lease = limiter.granted(key)
    client = example.start(porteiro.target, key[1], work=0)
    client.until(lambda: "refused" in names(events(client)), "a refusal")
    assert limiter.release(lease) == "RELEASED"
    until(lambda: not client.running(), "the end of the client")
    said = events(client)
    assert client.process.returncode == 0, said
    refusals = [event for event in said if event["event"] == "refused"]
    assert names(said) == ["refused"] * len(refusals) + ["granted", "released", "done"]
    for refusal, following in zip(said, said[1:]):
        if refusal["event"] == "refused":
            # The clock is read to a tenth of a millisecond.
            assert following["at"] - refusal["at"] >= refusal["retry_after"] - 1e-4 > 0
    assert limiter.in_flight(key) == 0


def test_five_tries_and_no_more(example, porteiro, limiter, key):
    lease = limiter.granted(key)
    code, said = example.run(porteiro.target, key[1])
    assert (code, names(said)) == (1, ["refused"] * 5 + ["gave_up"])
    assert limiter.release(lease) == "RELEASED"
    assert limiter.in_flight(key) == 0


def test_it_gives_up_at_once_when_waiting_is_of_no_use(example, porteiro, limiter, key):
    code, said = example.run(porteiro.target, key[1], permits=2)
    assert (code, names(said)) == (1, ["refused", "gave_up"])
    assert said[0]["decision"] == "NEVER" and said[0]["retry_after"] is None


def test_it_gives_up_at_once_when_it_would_come_back_too_late(example, porteiro, limiter, key):
    """The mean hold of this key becomes 3 s, the client has 1 s."""
    lease = limiter.granted(key, expected_hold={"seconds": 3})
    code, said = example.run(porteiro.target, key[1], within=1)
    assert (code, names(said)) == (1, ["refused", "gave_up"])
    assert said[0]["retry_after"] > 1
    assert limiter.release(lease) == "RELEASED"


def test_work_longer_than_the_lease_is_renewed(example, porteiro, limiter, key):
    client = example.start(porteiro.target, key[1], ttl=1, work=1.4)
    until(lambda: not client.running(), "the end of the client")
    said = events(client)
    assert names(said).count("renewed") >= 2, "at half of its life, which is 1 s"
    assert [event["status"] for event in said if "status" in event][-1] == "RELEASED"
    assert limiter.in_flight(key) == 0


def test_work_that_fails_gives_its_permit_back_too(example, porteiro, limiter, key):
    dropped = 'porteiro_concurrency_outcomes_total{domain="clients",limit="clients.upstream",outcome="dropped"}'
    before = porteiro.metric(dropped) or 0
    code, said = example.run(porteiro.target, key[1], "--fail", work=0)
    assert (code, names(said)) == (2, ["granted", "released", "failed"])
    assert porteiro.metric(dropped) == before + 1
    assert limiter.in_flight(key) == 0


def test_lost_calls_are_repeated_only_with_a_request_id(example):
    nobody = f"127.0.0.1:{free_port()}"
    code, said = example.run(nobody, "any")
    assert (code, names(said)) == (1, ["lost"] * 5 + ["gave_up"])
    assert {event["code"].upper() for event in said[:-1]} == {"UNAVAILABLE"}
    code, said = example.run(nobody, "any", "--once")
    assert (code, names(said)) == (1, ["lost", "gave_up"])


def test_a_lost_call_is_repeated_under_the_same_id(example, generated):
    """Here the server is ours: it can lose answers at will."""
    api = generated("porteiro.v1.limiter_pb2")
    services = generated("porteiro.v1.limiter_pb2_grpc")
    seen, lock = [], threading.Lock()

    class Service(services.LimiterServiceServicer):
        def Acquire(self, request, context):
            with lock:
                seen.append(request.request_id)
                if len(seen) < 3:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
            return api.AcquireResponse(decision=api.AcquireResponse.REPLAYED)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    services.add_LimiterServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        code, said = example.run(f"127.0.0.1:{port}", "any", work=0)
    finally:
        server.stop(0)
    assert (code, names(said)) == (0, ["lost", "lost", "granted", "done"])
    assert len(seen) == 3 and len(set(seen)) == 1 and seen[0]
