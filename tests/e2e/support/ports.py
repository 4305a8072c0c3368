"""Free ports on loopback."""

import os
import random
import socket

# Below the kernel's range for outgoing connections (32768 and up), so that no client of a
# parallel test takes a port between the look and the use.
_LOWEST, _HIGHEST = 12_000, 32_000
_random = random.Random(os.getpid() ^ int.from_bytes(os.urandom(8), "big"))
_given = set()


def free_port():
    """A port that nobody listens on and that this process has not given out before."""
    for _ in range(1_000):
        port = _random.randrange(_LOWEST, _HIGHEST)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError("no free port on loopback")
