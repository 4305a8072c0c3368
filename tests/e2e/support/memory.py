"""Resident memory of a process, and whether it grows."""

import statistics


def resident(child):
    """KiB."""
    with open(f"/proc/{child.process.pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    raise AssertionError("no VmRSS")


STRETCH = 20
"""Seconds. In each the process has, once at least, given back what it does not need."""


def growth(samples):
    """What a straight line through the lowest (second, KiB) of each stretch rises by from the first
    sample to the last. A leak lifts the lowest ones too; what lies above them comes and goes with
    connections."""
    lowest = {}
    for second, kib in samples:
        stretch = second // STRETCH
        lowest[stretch] = min(lowest.get(stretch, (second, kib)), (second, kib), key=lambda sample: sample[1])
    seconds, kib = zip(*lowest.values())
    slope, _ = statistics.linear_regression(seconds, kib)
    return slope * (samples[-1][0] - samples[0][0])
