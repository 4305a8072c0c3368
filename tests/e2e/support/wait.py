"""Waiting for another process. The only place of the suite that sleeps: a foreign process tells us
nothing, so its state has to be polled."""

import time


class Late(AssertionError):
    """Something did not happen in time."""


def until(check, what, timeout=20.0, every=0.02):
    """Polls `check` until it returns something true, and returns that.

    `what` completes the sentence "waited for …" of the failure.
    """
    deadline = time.monotonic() + timeout
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Late(f"waited {timeout:g} s for {what}")
        time.sleep(every)


def in_one_window(seconds, attempt):
    """Runs `attempt` until it begins and ends in the same clock-aligned window, and returns what it
    returned. One repetition is enough unless `attempt` is slower than the window."""
    for _ in range(3):
        before = int(time.time()) // seconds
        result = attempt()
        if int(time.time()) // seconds == before:
            return result
    raise Late(f"an attempt took longer than its window of {seconds} s")
