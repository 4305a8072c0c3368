"""RESULTS.md from the raw results of benches/run.sh.

    python3 benches/results.py target/bench [NOTE] > benches/RESULTS.md
"""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def table(heads, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def machine():
    cpu = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", cpu)
    memory = int(re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())[1])
    rows = [
        ("CPU", f"{name[1] if name else platform.machine()}, {cpu.count('processor')} cores"),
        ("memory", f"{memory / 2**20:.0f} GiB"),
        ("kernel", platform.release()),
        ("load when it was written", Path("/proc/loadavg").read_text().split()[0]),
        ("porteiro", output("git", "describe", "--always", "--dirty")),
        ("compiler", output("rustc", "--version")),
        ("h2load", output("h2load", "--version")),
    ]
    return table(["what", "which"], rows)


def decisions(text):
    """Nanoseconds by name, from criterion's output in the format of Rust's own benches."""
    found = re.findall(r"^test (\S+) \.\.\. bench:\s+([\d,]+) ns/iter", text, re.M)
    return {name: int(nanos.replace(",", "")) for name, nanos in found}


def grid(nanos, group, columns):
    """Names `group/row/column` as a table."""
    rows = {}
    for name, value in nanos.items():
        parts = name.split("/")
        if parts[0] == group and len(parts) == 3:
            rows.setdefault(parts[1], {})[parts[2]] = value
    return table(
        [group, *columns],
        [[row, *(values.get(column, "") for column in columns)] for row, values in rows.items()],
    )


def ratios(wire, nanos, memory, flood):
    """What is promised, and what was seen."""
    micros = {case["name"]: case["micros"] for case in wire["closed_loop"]}
    spread = {case["name"]: case["micros"] for case in wire["spread"]}
    latency = {case["name"]: case["latency"] for case in wire["open_loop"]}
    rows = [
        (
            "CPU of a call, fixed window, one hot key : no-op",
            micros["fixed window"] / micros["no-op"],
            "≤ 1.10",
        ),
        (
            "the same, 100,000 keys asked for evenly",
            spread["fixed window"] / spread["no-op"],
            "≤ 1.10",
        ),
        (
            "four token buckets, all or nothing : no-op",
            micros["four token buckets"] / micros["no-op"],
            "≤ 1.35",
        ),
        (
            "four token buckets : no-op with four descriptors",
            micros["four token buckets"] / micros["no-op, four descriptors"],
            "",
        ),
        (
            "every header family on every answer : no-op",
            micros["fixed window, all headers"] / micros["no-op"],
            "≤ 1.6",
        ),
        (
            "CPU of a call with two workers : with one",
            micros["fixed window, two workers"] / micros["fixed window"],
            "",
        ),
        (
            "decisions per CPU second, batches of 100 : unary calls",
            wire["batch"]["unary"] / wire["batch"]["batch"],
            "≥ 10",
        ),
        (
            f"p99.9 at {wire['rate']:,} calls/s : no-op",
            latency["fixed window"][3] / latency["no-op"][3],
            "≤ 1.3",
        ),
        (
            "governor with a string of the entries : our token bucket, time of a decision",
            nanos["peer/governor_of_entries"] / nanos["peer/token_bucket"],
            "≥ 1.5",
        ),
        (
            "governor with a string of the entries : our fixed window",
            nanos["peer/governor_of_entries"] / nanos["peer/fixed_window"],
            "≥ 1.5",
        ),
        (
            "governor with a string that is there already : our token bucket",
            nanos["peer/governor"] / nanos["peer/token_bucket"],
            "≥ 1.5",
        ),
        (
            "governor with a string that is there already : our fixed window",
            nanos["peer/governor"] / nanos["peer/fixed_window"],
            "≥ 1.5",
        ),
        (
            "governor with a string of the entries : our clock, key and counter alone",
            nanos["peer/governor_of_entries"] / nanos["parts/together"],
            "",
        ),
        (
            "two threads : one thread, time of a decision on each (keys spread)",
            nanos["threads/spread/2"] / nanos["threads/spread/1"],
            "",
        ),
    ]
    rows = [(what, f"{ratio:.2f}", goal) for what, ratio, goal in rows]
    constant = [row for row in memory[1:] if row[0] != "sliding_log"]
    worst = max(int(cell) for row in constant for cell in row[1:3])
    rows.append(("bytes of memory for a live key, at most", worst, "≤ 96"))
    slowest = memory[0].index("slowest_insertion_us")
    slowest = max(int(row[slowest]) for row in memory[1:]) / 1e3
    rows.append(("slowest insertion on the way to 10 M keys, ms of CPU", f"{slowest:.2f}", "≤ 2"))
    if flood:
        what = "p99 of a steady caller beside 200,000 addresses in 10 s : alone"
        rows.append((what, f"{flood['ratio_of_medians']:.2f}", "< 2"))
    return table(["ratio", "seen", "goal"], rows)


def closed_loop(wire):
    base = wire["closed_loop"][0]["micros"]
    return table(
        ["server", "µs of CPU a call", "lowest", "highest", ": no-op", "calls/s"],
        [
            (
                case["name"],
                f"{case['micros']:.2f}",
                f"{min(case['all']):.2f}",
                f"{max(case['all']):.2f}",
                f"{case['micros'] / base:.2f}",
                f"{case['per_second']:,.0f}",
            )
            for case in wire["closed_loop"]
        ],
    )


def spread(wire):
    return table(
        ["server", "µs of CPU a call", "lowest", "highest"],
        [
            (
                case["name"],
                f"{case['micros']:.2f}",
                f"{min(case['all']):.2f}",
                f"{max(case['all']):.2f}",
            )
            for case in wire["spread"]
        ],
    )


def open_loop(wire):
    heads = ["server", "p50", "p90", "p99", "p99.9", "p99.99", "max", "lag p99", "lag p99.9"]
    rows = []
    for case in wire["open_loop"]:
        cells = [f"{micros / 1e3:.3f}" for micros in case["latency"]]
        lag = [f"{case['lag'][index] / 1e3:.3f}" for index in (2, 3)]
        limits = [limit for limit in case["limits"] if limit != "none"]
        name = case["name"] + "".join(f" (limited by the {limit})" for limit in limits)
        rows.append([name, *cells, *lag])
    return table(heads, rows)


TEXT = """\
# Results of `benches/run.sh`

{machine}

{note}All of it was measured in one run on this machine. Absolute numbers move with whatever else it
does; the ratios are between things that ran in turn.

## Ratios

{ratios}

## CPU of a call

`h2load -c 8 -m 32 -n 100000` against each server in turn, medians of rounds; the CPU is that
of the server process. One worker each, unless told otherwise; every call asks for the same key.
*no-op* answers with an empty decision on the same transport and runtimes.

{closed_loop}

Every call for another of 100,000 keys, from `porteiro bench` with at most 256 calls in flight.
Its calls come in smaller batches than h2load's, which costs every server more:

{spread}

## Latency

`porteiro bench --rate {rate} --arrivals poisson`, 30 % of what the no-op can do by its CPU, three
rounds of four seconds in turn, medians, in milliseconds from the scheduled instant. *lag* is what
the generator itself was late.

{open_loop}

## The decision alone

`cargo bench --bench decision`: nanoseconds, one thread unless told otherwise, 100,000 keys asked
for evenly unless told otherwise. Each decision reads the clock once.

Beside governor's keyed limiter. Ours gets a domain and entries, and makes the counter's key of
them. *governor_of_entries* gets the same and puts a string together for its key; *governor* gets
strings that are there already:

{peer}

What a decision has to do whatever it decides, each thing alone: *key* makes the name of a counter of
an entry, *lock* is one that nobody else wants, *counter* is everything between a key and an outcome,
the lock too, and *counter_hot* the same with what it reads in the nearest cache. *together* is clock,
key and counter in turn; what a decision takes beyond these {least} ns goes to rules, statistics and the
verdict.

{parts}

Algorithms:

{algorithms}

Token buckets on one rule, all or nothing; where one refuses it is the last:

{limits}

A fixed window by number of keys:

{keys}

New keys, so that tables grow: {new} ns. No rule matches: {no_rule} ns.

Time of a decision on each of one and two threads that decide at once:

{threads}

The store alone, without rules and keys to hash; `n` token buckets are `n` counters of one request:

{store}

## Memory

`cargo bench --bench memory`: a fresh store takes ten million keys, then is copied as for a state
file, then swept when all of it has ended. Resident bytes per key; beside them what the store
itself counts. Microseconds are of the thread's CPU, page faults included; *by the clock* has
whatever the machine did in between too; *nothing* is a loop that only reads the clock. A copy is made of parts under one lock each; a sweep is of
a whole shard and takes its lock once per thousand counters.

{memory}
"""


def main():
    raw, note = Path(sys.argv[1]), " ".join(sys.argv[2:])
    wire = json.loads((raw / "wire.json").read_text())
    nanos = decisions((raw / "decision.txt").read_text())
    memory = [line.split() for line in (raw / "memory.txt").read_text().splitlines()]
    flood = raw / "flood.json"
    flood = json.loads(flood.read_text()) if flood.exists() else None

    def plain(group):
        names = [name for name in nanos if name.startswith(f"{group}/")]
        return table([group, "ns"], [(name.removeprefix(f"{group}/"), nanos[name]) for name in names])

    print(
        TEXT.format(
            machine=machine(),
            note=f"{note}\n\n" if note else "",
            ratios=ratios(wire, nanos, memory, flood),
            closed_loop=closed_loop(wire),
            spread=spread(wire),
            rate=wire["rate"],
            open_loop=open_loop(wire),
            peer=plain("peer"),
            least=nanos["parts/together"],
            parts=plain("parts"),
            algorithms=grid(nanos, "algorithm", ["admits", "refuses"]),
            limits=grid(nanos, "limits", ["admits", "refuses"]),
            keys=grid(nanos, "keys", ["1k", "100k", "10M"]),
            new=nanos["keys/new"],
            no_rule=nanos["no_rule"],
            threads=grid(nanos, "threads", ["1", "2"]),
            store=plain("store"),
            memory=table([head.replace("_", " ") for head in memory[0]], memory[1:]),
        ),
        end="",
    )
    redis = raw / "redis.md"
    if redis.exists():
        print("\n" + redis.read_text(), end="")


if __name__ == "__main__":
    main()
