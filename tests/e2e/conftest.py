"""Fixtures: processes, one folder for their logs, generated clients."""

import pytest

from support import protos
from support.envoy import Envoy
from support.porteiro import Porteiro
from support.upstream import Upstream


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests that take minutes, too")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        chosen = [item for item in items if "long" not in item.keywords]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    """A folder of the test file: configurations and logs."""
    return tmp_path_factory.mktemp(request.module.__name__)


@pytest.fixture(scope="module")
def started():
    """Processes to end when the file is done, whatever happened."""
    children = []
    yield children
    for child in reversed(children):
        child.kill()


@pytest.fixture(scope="module")
def serve(folder, started):
    """Starts porteiro: `serve(config, flags=…, env=…)`."""

    def start(config=None, **options):
        log = folder / f"porteiro-{len(started)}.log"
        porteiro = Porteiro(log, config, **options)
        started.append(porteiro)
        porteiro.until_ready()
        return porteiro

    return start


@pytest.fixture(scope="module")
def upstream():
    server = Upstream()
    yield server
    server.close()


@pytest.fixture(scope="module")
def proxy(folder, started, upstream):
    """Starts Envoy in front of the upstream: `proxy(porteiro_port, change=…)`."""

    def start(porteiro_port, change=None):
        envoy = Envoy(folder, porteiro_port, upstream.port, change)
        started.append(envoy)
        envoy.until_ready()
        return envoy

    return start


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """Makes the modules generated from proto/ importable; returns `protos.module`."""
    protos.generate(tmp_path_factory.mktemp("generated"))
    return protos.module
