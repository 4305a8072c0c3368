"""Resident memory of a process, and whether it grows."""

import statistics


def resident(child):
    """KiB."""
    with open(f"/proc/{child.process.pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    raise AssertionError("no VmRSS")


def growth(samples):
    """What a straight line through (second, KiB) rises by from the first sample to the last."""
    seconds, kib = zip(*samples)
    slope, _ = statistics.linear_regression(seconds, kib)
    return slope * (seconds[-1] - seconds[0])
