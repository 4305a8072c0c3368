"""Clients that never stop asking while a test does something to the servers."""

import http.client
import threading

from support.wait import until


class Load:
    """Calls `ask(number)` from `clients` threads, over and over. A context manager."""

    def __init__(self, ask, clients=4):
        self.answers = 0
        self.failures = []
        self._ask = ask
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(clients)
        ]

    def _run(self, number):
        while not self._stop.is_set():
            try:
                failure = self._ask(number)
            except Exception as error:  # whatever a client sees is a failure to report
                failure = repr(error)
            with self._lock:
                self.answers += 1
                if failure:
                    self.failures.append(failure)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def pass_more(self, count, timeout=20.0):
        """Waits until `count` more calls were answered."""
        goal = self.answers + count
        until(lambda: self.answers >= goal, f"{count} more answers", timeout)


def through_envoy(port, path="/"):
    """For `Load`: GET on kept-alive connections, one a client; anything but 200 is a failure."""
    connections = {}

    def ask(number):
        connection = connections.get(number)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connections[number] = connection
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return None if response.status == 200 else f"status {response.status}"

    return ask
