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


def in_one_window(seconds, attempt, takes=15):
    """Runs `attempt` inside one clock-aligned window and returns what it returned.

    The process under test reads the machine's clock, so a count could begin in one window and end
    in the next. When less than `takes` seconds of the window are left, the next one is awaited.
    """
    left = seconds - time.time() % seconds
    if left < takes:
        time.sleep(left)
    window = time.time() // seconds
    result = attempt()
    assert time.time() // seconds == window, f"took longer than {takes} s"
    return result
