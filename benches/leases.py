"""What the script of leases costs Redis for one call, as a section in Markdown on stdout:

    PORTEIRO_BIN=target/release/porteiro python3 benches/leases.py

Redis measures it itself (`INFO commandstats`, usec_per_call of EVALSHA): no client and no network is
in it, but whoever else has the processor; beside it, all of Redis' CPU by /proc. Acquires alone, granted and refused, and acquires each with its release. Needs Linux, Python
3, redis-server and redis-cli. Everything is on loopback and ended afterwards.
"""

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "5"))
# Calls of a round: RATE for SECONDS.
RATE, SECONDS = 4000, 6
RULES = """\
domain: bench
stacking: all_or_nothing
descriptors:
- {key: free, concurrency: {limit: 1000000, lease_ttl: 60s}}
- {key: full, concurrency: {limit: 0}}
- {key: rate, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
"""
# Name, descriptors of a call, how long a lease is held; longer than a round is no release in it.
CASES = [
    ("acquire, granted, 24,000 leases of one key at the end", "free=x", "30s"),
    ("acquire, refused", "full=x", "1ms"),
    ("acquire and release, held for 10 ms", "free=x", "10ms"),
    ("acquire and release, a key for every tenth call", "free={key}", "10ms"),
    ("acquire with a rate limit, and release", "free=x;rate=x", "10ms"),
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(words, port):
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.02)
    sys.exit(f"nobody listens on port {port}")


def redis_cli(port, *words):
    out = subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, text=True, check=True)
    return out.stdout


def cpu(process):
    """Seconds of CPU that the process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(redis, redis_port, grpc_port, descriptors, hold):
    """Calls of the script in a round, microseconds of one, and of Redis' CPU for one."""
    redis_cli(redis_port, "FLUSHALL")
    redis_cli(redis_port, "CONFIG", "RESETSTAT")
    before = cpu(redis)
    words = [os.environ["PORTEIRO_BIN"], "bench", "--target", f"http://127.0.0.1:{grpc_port}"]
    words += ["--call", "acquire", "--rate", str(RATE), "--duration", f"{SECONDS}s", "--warm-up", "0s"]
    words += ["--drain", "1s", "--hold", hold, "--descriptor", descriptors]
    words += ["--keys", str(RATE * SECONDS // 10)]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    stats = redis_cli(redis_port, "INFO", "commandstats")
    found = re.search(r"cmdstat_evalsha:calls=(\d+),usec=\d+,usec_per_call=([\d.]+)", stats)
    calls = int(found[1])
    return calls, float(found[2]), (cpu(redis) - before) / calls * 1e6


def main():
    running = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bench.yaml").write_text(RULES)
        redis_port, grpc_port = free_port(), free_port()
        words = ["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""]
        any_port = "127.0.0.1:0"
        ours = [os.environ["PORTEIRO_BIN"], "serve", "--grpc", f"127.0.0.1:{grpc_port}", "--http", any_port]
        ours += ["--admin", any_port, "--config", folder, "--store", f"redis://127.0.0.1:{redis_port}"]
        try:
            running.append(start([*words, "--appendonly", "no", "--dir", folder], redis_port))
            running.append(start([*ours, "--store-deadline", "2s"], grpc_port))
            time.sleep(1)
            print("## The script of leases\n")
            print(f"`INFO commandstats`, {ROUNDS} rounds of {RATE * SECONDS} calls at {RATE}/s, medians.\n")
            print("| calls | EVALSHA a round | µs each | lowest | highest | Redis' CPU each |")
            print("|---|--:|--:|--:|--:|--:|")
            for name, descriptors, hold in CASES:
                rounds = [measure(running[0], redis_port, grpc_port, descriptors, hold) for _ in range(ROUNDS)]
                calls, each, used = zip(*rounds)
                figures = f"{statistics.median(each):.1f} | {min(each):.1f} | {max(each):.1f}"
                figures += f" | {statistics.median(used):.1f}"
                print(f"| {name} | {int(statistics.median(calls))} | {figures} |")
        finally:
            for process in running:
                process.kill()
                process.wait()


main()
