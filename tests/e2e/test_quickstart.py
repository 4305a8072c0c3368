"""`porteiro` without arguments: serves from memory and prints a curl that shows 200, then 429."""

import os
import re
import subprocess

import pytest

from support import ROOT
from support.child import Child
from support.http import status_of
from support.porteiro import binary
from support.ports import free_port
from support.wait import in_one_window


@pytest.fixture(scope="module")
def quickstart(folder, started):
    """`porteiro`, with nothing but addresses from the environment."""
    grpc, http, admin = (free_port() for _ in range(3))
    env = {
        "PORTEIRO_GRPC": f"127.0.0.1:{grpc}",
        "PORTEIRO_HTTP": f"127.0.0.1:{http}",
        "PORTEIRO_ADMIN": f"127.0.0.1:{admin}",
    }
    child = Child([binary()], folder / "quickstart.log", env)
    started.append(child)
    child.until(lambda: status_of(http, "/readyz") == 200, "readiness")
    return child


def test_the_first_line_says_what_it_serves(quickstart):
    assert "quickstart" in quickstart.output().splitlines()[0]


def test_the_printed_curl_gets_200_and_then_429(quickstart):
    commands = re.findall(r"^\s*(curl .*)$", quickstart.output(), re.MULTILINE)
    assert len(commands) == 1, quickstart.output()

    def status():
        done = subprocess.run(["bash", "-c", commands[0]], capture_output=True, text=True, timeout=20)
        found = re.search(r"\b(200|429)\b", done.stdout)
        assert found, f"no status in what a user sees: {done.stdout!r} {done.stderr!r}"
        return int(found.group(1))

    statuses = in_one_window(60, lambda: [status() for _ in range(6)])
    assert statuses == [200, 200, 200, 429, 429, 429]


def test_cargo_run_needs_no_name_of_a_binary():
    words = ["cargo", "run", "--quiet", "--locked", "--", "--version"]
    done = subprocess.run(words, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("porteiro ")
