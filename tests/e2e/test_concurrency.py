"""Limits on work in flight, driven by a stock Envoy: acquire on the request, release when its stream is done."""

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support import RULES
from support.envoy import Envoy, replaced_once
from support.wait import until

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
    """An upstream that takes its time and counts how many it serves at once."""

    def __init__(self):
        self.now, self.most, self.served, self.hold = 0, 0, 0, HOLD
        self._lock = threading.Lock()
        slow = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                with slow._lock:
                    slow.now += 1
                    slow.served += 1
                    slow.most = max(slow.most, slow.now)
                time.sleep(slow.hold)  # the work
                with slow._lock:
                    slow.now -= 1
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


@pytest.fixture(scope="module")
def slow():
    return Slow()


@pytest.fixture(scope="module")
def porteiro(serve):
    return serve(RULES / "concurrency.yaml")


@pytest.fixture(scope="module")
def envoys(folder, started, slow, porteiro):
    def change(text):
        search = route("/search", "search", "generic_key: {descriptor_key: conc, descriptor_value: search}")
        single = route(
            "/single",
            "single",
            "generic_key: {descriptor_key: conc, descriptor_value: single}",
            "request_headers: {header_name: x-client, descriptor_key: client}",
        )
        anchor = "              - match: {prefix: /login}\n"
        return replaced_once(text, anchor, search + single + anchor)

    def start():
        envoy = Envoy(folder, porteiro.grpc_port, slow.port, change)
        started.append(envoy)
        envoy.until_ready()
        return envoy

    return start


@pytest.fixture(scope="module")
def envoy(envoys):
    return envoys()


def clients(envoy, count, seconds, abort=False):
    """So many clients that ask without a pause; the statuses they saw."""
    statuses, end = [], time.monotonic() + seconds

    def run():
        while time.monotonic() < end:
            connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=0.1 if abort else 10)
            try:
                connection.request("GET", "/search")
                statuses.append(connection.getresponse().status)
            except OSError:
                statuses.append(0)
            finally:
                connection.close()
            time.sleep(0.02)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def nothing_in_flight(porteiro):
    until(lambda: porteiro.metric(IN_FLIGHT) in (None, 0), "the end of all leases", 10)


def test_the_upstream_never_sees_more_than_the_limit(envoy, slow, porteiro):
    statuses = clients(envoy, 50, 5)
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 5 * 5 / HOLD * 0.5, "the limit is used"
    assert slow.most == 5
    nothing_in_flight(porteiro)


def test_clients_that_abort_leave_nothing_behind(envoy, slow, porteiro):
    statuses = clients(envoy, 20, 2, abort=True)
    assert statuses.count(0) > 0, "somebody gave up"
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
    slow.hold = HOLD
    nothing_in_flight(porteiro)
