"""A small HTTP client that shows everything about an answer."""

import http.client
from dataclasses import dataclass, field


@dataclass
class Answer:
    status: int
    headers: list = field(default_factory=list)
    body: bytes = b""

    def all(self, name):
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key.lower() == name]

    def header(self, name):
        """The value of a header that must not be there twice; None when it is absent."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None


def ask(port, path="/", method="GET", headers=None, body=None, source=None, timeout=10.0):
    """One request on a connection of its own; `source` is the address it comes from."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=timeout, source_address=(source, 0) if source else None
    )
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def status_of(port, path, timeout=2.0):
    """The status of a GET; None when nobody answers."""
    try:
        return ask(port, path, timeout=timeout).status
    except (OSError, http.client.HTTPException):
        return None
