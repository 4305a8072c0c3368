"""Limits on work in flight, driven by a stock Envoy: acquire on the request, release when its stream is done."""

import http.client
import select
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support import RULES
from support.envoy import Envoy, replaced_once
from support.porteiro import Porteiro
from support.wait import until
from test_envoy_restart import patient

HOLD = 0.3
IN_FLIGHT = 'porteiro_concurrency_in_flight{domain="edge",limit="edge.conc_search.lease_id"}'

ITEMS = """
                - match: {prefix: PATH}
                  route: {cluster: upstream, timeout: 3s}
                  typed_per_filter_config:
                    envoy.filters.http.ratelimit:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                      rate_limits:
                      - actions: &NAME
ACTIONS
                        - request_headers: {header_name: x-request-id, descriptor_key: lease_id}
                        hits_addend: {number: 1}
                      - actions: *NAME
                        hits_addend: {number: 1, is_negative_hits: true}
                        apply_on_stream_done: true
"""


def route(path, name, *actions):
    indented = "\n".join(f"                        - {action}" for action in actions)
    return (
        ITEMS.replace("PATH", path)
        .replace("NAME", name)
        .replace("ACTIONS", indented)
        .replace("\n  ", "\n")
        .lstrip("\n")
    )


class Slow:
    """An upstream that takes its time and counts how many it serves at once. It stops working for a
    client that is gone."""

    def __init__(self):
        self.most, self.hold = 0, HOLD
        self._served, self._lock = set(), threading.Lock()
        slow = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                slow._begin(self.connection)
                # The work: ends early when the connection does.
                select.select([self.connection], [], [], slow.hold)
                slow._end(self.connection)
                try:
                    self.send_response(200)
                    self.send_header("content-length", "3")
                    self.end_headers()
                    self.wfile.write(b"ok\n")
                except OSError:
                    pass  # the client is gone

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1024

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _begin(self, connection):
        with self._lock:
            # One that was closed counts no more, even when its thread has not seen it yet.
            self._served = {other for other in self._served if is_open(other)} | {connection}
            self.most = max(self.most, len(self._served))

    def _end(self, connection):
        with self._lock:
            self._served.discard(connection)


def is_open(connection):
    """Whether the other side has not closed it."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.fixture
def slow(upstream_that_takes_time):
    """Counts from the start of each test."""
    upstream_that_takes_time.most = 0
    upstream_that_takes_time.hold = HOLD
    return upstream_that_takes_time


@pytest.fixture(scope="module")
def upstream_that_takes_time():
    return Slow()


@pytest.fixture(scope="module")
def porteiro(serve):
    return serve(RULES / "concurrency.yaml")


@pytest.fixture(scope="module")
def envoys(folder, started, upstream_that_takes_time, porteiro):
    def routes(text):
        search = route("/search", "search", "generic_key: {descriptor_key: conc, descriptor_value: search}")
        single = route(
            "/single",
            "single",
            "generic_key: {descriptor_key: conc, descriptor_value: single}",
            "request_headers: {header_name: x-client, descriptor_key: client}",
        )
        anchor = "              - match: {prefix: /login}\n"
        return replaced_once(text, anchor, search + single + anchor)

    def start(porteiro=porteiro):
        # Fail closed: a call that is late on a busy machine must not pass uncounted.
        edit = lambda text: patient(routes(text))
        envoy = Envoy(folder, porteiro.grpc_port, upstream_that_takes_time.port, edit)
        started.append(envoy)
        envoy.until_ready()
        return envoy

    return start


@pytest.fixture(scope="module")
def envoy(envoys):
    return envoys()


def clients(envoy, count, seconds, abort=False, seen=None):
    """So many clients that ask without a pause; the statuses they saw. `seen` is told each status,
    and when it was asked for."""
    statuses, end = [], time.monotonic() + seconds

    def run():
        while (asked := time.monotonic()) < end:
            connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=0.1 if abort else 10)
            try:
                connection.request("GET", "/search")
                statuses.append(connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                statuses.append(0)
            finally:
                connection.close()
            if seen:
                seen(statuses[-1], asked)
            time.sleep(0.02)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def nothing_in_flight(porteiro):
    until(lambda: porteiro.metric(IN_FLIGHT) in (None, 0), "the end of all leases", 10)


@pytest.fixture
def seconds(request):
    """How long clients ask: the full time with --long."""
    return 10 if request.config.getoption("--long") else 4


def test_the_upstream_never_sees_more_than_the_limit(envoy, slow, porteiro, seconds):
    statuses = clients(envoy, 50, seconds)
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 5 * seconds / HOLD * 0.5, "the limit is used"
    assert slow.most == 5
    nothing_in_flight(porteiro)


def test_clients_that_abort_leave_nothing_behind(envoy, slow, porteiro, seconds):
    """They leave after 0.1 s of 0.3 s. Envoy gives their permits back and tells the upstream."""
    statuses = clients(envoy, 50, seconds / 2, abort=True)
    assert statuses.count(0) > 5 and set(statuses) == {0, 429}
    assert slow.most == 5
    nothing_in_flight(porteiro)


def test_one_keep_alive_client_is_never_refused_for_its_own_previous_request(envoy, slow):
    slow.hold = 0
    connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=10)
    statuses = []
    for _ in range(300):
        connection.request("GET", "/single", headers={"x-client": "ana"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    slow.hold = HOLD
    assert statuses == [200] * 300


def test_leases_of_an_envoy_that_was_killed_end_by_their_ttl(envoys, slow, porteiro):
    envoy = envoys()
    slow.hold = 3
    for _ in range(3):
        threading.Thread(target=lambda: clients(envoy, 1, 0.01), daemon=True).start()
    until(lambda: porteiro.metric(IN_FLIGHT) == 3, "three leases")
    envoy.kill()
    assert porteiro.metric(IN_FLIGHT) == 3, "nobody said that they ended"
    nothing_in_flight(porteiro)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_a_restart_under_envoy_while_leases_are_out(envoys, slow, serve, folder, started, how):
    """With `on_restart: quarantine` and Envoy failing closed, the upstream sees no more than the
    limit although the new process knows nothing of the leases that are out: it grants when their
    TTL is over, and no earlier."""
    ttl = 2
    first = serve(RULES / "restart.yaml")
    ports = first.grpc_port, first.http_port, first.admin_port
    envoy = envoys(first)
    slow.hold = 1.5  # the old work lasts well into the life of the new process
    granted = []
    note = lambda status, asked: granted.append(time.monotonic()) if status == 200 else None
    statuses = []
    load = threading.Thread(target=lambda: statuses.extend(clients(envoy, 20, ttl + 5, seen=note)))
    load.start()
    until(lambda: first.metric(IN_FLIGHT) == 5, "a full limit")
    until(lambda: granted, "the second five")
    first.process.send_signal(how)
    if how == signal.SIGTERM:
        until(lambda: not first.running(), "the end of the first process", 30)
    first.process.wait()
    begun = time.monotonic()
    second = Porteiro(folder / f"restarted-{how.name}.log", RULES / "restart.yaml", ports=ports)
    started.append(second)
    second.until_ready()
    load.join()
    assert set(statuses) <= {200, 429, 503}, "503 while nobody answers"
    # What the first process granted ends a hold later, give or take what a busy machine takes.
    later = [at for at in granted if at >= begun + slow.hold + ttl / 2]
    assert later and min(later) >= begun + ttl + slow.hold, "work that began before the TTL was over"
    assert slow.most == 5
    until(lambda: second.metric(IN_FLIGHT) == 0, "the end of all leases", 10)
