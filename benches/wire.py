"""What a call costs on the wire: porteiro beside the empty decision of the same program.

    PORTEIRO_BIN=target/release/porteiro python3 benches/wire.py > wire.json

Servers run side by side with one worker each and are loaded in turn, round after round, so that a
machine that slows down slows down all of them; the medians are told. The CPU time is that of the
server process alone, from /proc, so that it means something also where the load shares the cores.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "e2e"))

from support.porteiro import Porteiro, binary  # noqa: E402  (the path comes first)

ROUNDS = int(os.environ.get("PORTEIRO_BENCH_ROUNDS", "7"))
# Of our own generator; a round takes seconds.
LATENCY_ROUNDS = 3
# Share of the no-op's capacity at which latencies are measured.
LOAD = 0.3
CALLS = 100_000
CONNECTIONS, STREAMS = 8, 32
KEYS = 100_000
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
BATCH, BATCH_METHOD = 100, "/porteiro.v1.LimiterService/ShouldRateLimitBatch"

TWO_ENTRIES = "tenant=acme,user=user-{key}"
FOUR_DESCRIPTORS = "tenant=acme;user=user-{key};path=/v1/search;method=GET"

# Name, flags of the server, its rules, what is asked. The others are compared with the first.
CASES = [
    ("no-op", ["--noop"], None, TWO_ENTRIES),
    ("fixed window", [], "fixed_window.yaml", TWO_ENTRIES),
    ("fixed window, all headers", [], "all_headers.yaml", TWO_ENTRIES),
    ("no-op, four descriptors", ["--noop"], None, FOUR_DESCRIPTORS),
    ("four token buckets", [], "four_buckets.yaml", FOUR_DESCRIPTORS),
]


def length_delimited(field, data):
    """A protobuf field of bytes, shorter than 128."""
    assert len(data) < 128
    return bytes([field << 3 | 2, len(data)]) + data


def grpc_message(descriptors):
    """A RateLimitRequest as the body of a call."""
    request = length_delimited(1, b"bench")
    for descriptor in descriptors.replace("{key}", "0").split(";"):
        entries = b""
        for entry in descriptor.split(","):
            key, value = entry.split("=", 1)
            pair = length_delimited(1, key.encode()) + length_delimited(2, value.encode())
            entries += length_delimited(1, pair)
        request += length_delimited(2, entries)
    return b"\0" + len(request).to_bytes(4, "big") + request


def cpu_seconds(pid):
    """User and system time of a process so far, all its threads."""
    nanoseconds = sum(
        int(task.joinpath("schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
    )
    return nanoseconds / 1e9


def varint(number):
    """Seven bits a byte, the lowest first."""
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def batch_message(descriptors, count):
    """A ShouldRateLimitBatchRequest of `count` equal requests as the body of a call."""
    request = grpc_message(descriptors)[5:]
    batch = (b"\x0a" + varint(len(request)) + request) * count
    return b"\0" + len(batch).to_bytes(4, "big") + batch


class Case:
    """A server that is loaded."""

    def __init__(self, folder, name, flags, rules, descriptors, workers=1):
        self.name = name
        self.descriptors = descriptors
        self.body = folder / f"{name}.body"
        self.body.write_bytes(grpc_message(descriptors))
        self.server = Porteiro(
            folder / f"{name}.log",
            rules and HERE / "rules" / rules,
            [*flags, f"--workers={workers}"],
        )
        self.server.until_ready()
        self.pid = self.server.process.pid
        self.micros = []

    def h2load(self, calls=CALLS, method=METHOD):
        """Calls per second of a closed loop; the server's CPU per call is added to `micros`."""
        before = cpu_seconds(self.pid)
        out = subprocess.run(
            ["h2load", f"-c{CONNECTIONS}", f"-m{STREAMS}", f"-n{calls}", "-t1", f"-d{self.body}"]
            + ["-Hcontent-type: application/grpc", "-Hte: trailers"]
            + [f"http://{self.server.target}{method}"],
            **OUTPUT,
        ).stdout
        used = cpu_seconds(self.pid) - before
        done = int(re.search(r"(\d+) succeeded", out)[1])
        assert done == calls, f"{self.name}: {done} of {calls} calls succeeded"
        self.micros.append(used / calls * 1e6)
        return float(re.search(r"([\d.]+) req/s", out)[1])

    def bench(self, *flags):
        """The one step of a run of our own generator, with the keys of the case."""
        report = self.body.with_suffix(".json")
        flags = ["--target", f"http://{self.server.target}", "--json", report, *flags]
        flags += ["--descriptor", self.descriptors, "--keys", KEYS]
        subprocess.run([binary(), "bench", *map(str, flags)], **OUTPUT)
        return json.loads(report.read_text())["steps"][0]


OUTPUT = {"check": True, "capture_output": True, "text": True, "timeout": 120}


def median_of(steps, name):
    """Medians over rounds of the quantiles of a report, in microseconds."""
    rounds = [step[name]["quantiles"] for step in steps]
    return [statistics.median(values) for values in zip(*rounds)]


def closed_loop(cases):
    """CPU per call and calls per second of each, by rounds of h2load."""
    rates = {case.name: [] for case in cases}
    for case in cases:
        case.h2load(CALLS // 5)
        case.micros.clear()
    for _ in range(ROUNDS):
        for case in cases:
            rates[case.name].append(case.h2load())
    return [
        {
            "name": case.name,
            "micros": statistics.median(case.micros),
            "all": case.micros,
            "per_second": statistics.median(rates[case.name]),
        }
        for case in cases
    ]


def batch(case):
    """CPU per decision in unary calls and in batches, by turns, at the same server."""
    unary, batches = [], []
    for _ in range(ROUNDS):
        for body, method, calls, decisions, micros in (
            (grpc_message(case.descriptors), METHOD, CALLS // 2, 1, unary),
            (batch_message(case.descriptors, BATCH), BATCH_METHOD, CALLS // 50, BATCH, batches),
        ):
            case.body.write_bytes(body)
            case.h2load(calls, method)
            micros.append(case.micros.pop() / decisions)
    return {"unary": statistics.median(unary), "batch": statistics.median(batches)}


def spread(cases):
    """CPU per call when every call is for another key: our own generator as fast as it goes."""
    flags = ["--rate", 1_000_000, "--duration", "2s", "--warm-up", "0s", "--drain", "100ms"]
    flags += ["--max-in-flight", CONNECTIONS * STREAMS]
    micros = {case.name: [] for case in cases}
    for _ in range(LATENCY_ROUNDS):
        for case in cases:
            before = cpu_seconds(case.pid)
            step = case.bench(*flags)
            used = cpu_seconds(case.pid) - before
            micros[case.name].append(used / (step["passed"] + step["refused"]) * 1e6)
    return [
        {"name": name, "micros": statistics.median(all), "all": all}
        for name, all in micros.items()
    ]


def open_loop(cases, rate):
    """Latencies at a rate."""
    flags = ["--rate", rate, "--duration", "4s", "--warm-up", "1s", "--arrivals", "poisson"]
    steps = {case.name: [] for case in cases}
    for _ in range(LATENCY_ROUNDS):
        for case in cases:
            steps[case.name].append(case.bench(*flags))
    return [
        {
            "name": name,
            "latency": median_of(all, "latency"),
            "lag": median_of(all, "lag"),
            "limits": sorted({step["limit"] for step in all}),
        }
        for name, all in steps.items()
    ]


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        cases = [Case(folder, *case) for case in CASES]
        two = Case(folder, "fixed window, two workers", *CASES[1][1:], workers=2)
        by_name = {case.name: case for case in cases}
        pair = [by_name["no-op"], by_name["fixed window"]]
        try:
            results = {"closed_loop": closed_loop([*cases, two])}
            results["batch"] = batch(by_name["fixed window"])
            results["spread"] = spread(pair)
            no_op = results["closed_loop"][0]["micros"]
            rate = round(LOAD * 1e6 / no_op, -3)
            results["rate"] = rate = int(rate)
            results["open_loop"] = open_loop(pair, rate)
        finally:
            for case in [*cases, two]:
                case.server.kill()
    json.dump(results, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
