"""Costs of the shared store, as a section in Markdown on stdout. Started by benches/redis.sh.

CPU time is that of the server processes alone, from /proc, so that it means something also where
the load shares the cores with them. Servers are loaded in turn, round after round; medians count.
"""

import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LUA = ROOT / "src/store/redis/lua"
# In the order of src/store/redis/script.rs.
PARTS = ["exact", "fixed_window", "sliding_window", "bucket", "sliding_log", "decide"]
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
ROUNDS = int(os.environ.get("ROUNDS", "5"))
CALLS = int(os.environ.get("CALLS", "60000"))
DEPTHS = [16, 64]
# The count of the only fixed window of the domain.
COUNTED = """
local key = redis.call('KEYS', '{porteiro:bench}:*')[1]
local _, _, count = struct.unpack('<Bddd', redis.call('GET', key))
return count"""
RULES = """\
domain: bench
descriptors:
- key: tenant
  descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
"""

# The same limit in blocks that are taken ahead: `limits` has what `rate_limit` has not.
SLICED = RULES.replace(
    "rate_limit: {unit: hour, requests_per_unit: 4000000000}",
    "limits: [{rate: 4000000000/hour, slice: {size: auto}}]",
)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port):
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    sys.exit(f"nobody listens on port {port}")


def cpu(process):
    """Seconds of CPU that the process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def grpc_request():
    """One descriptor of two entries, in a gRPC frame."""
    entries = [("tenant", "acme"), ("user", "user-1")]
    pairs = [field(1, k.encode()) + field(2, v.encode()) for k, v in entries]
    descriptor = b"".join(field(1, pair) for pair in pairs)
    message = field(1, b"bench") + field(2, descriptor)
    return b"\0" + struct.pack(">I", len(message)) + message


def script_message():
    """One request with one fixed window of the clock, as src/store/redis/batch.rs writes it."""
    hour = 3_600_000_000
    header = struct.pack("<dBH", 2.0**60, 0, 1)
    ask = struct.pack("<Bddd", 1, 1, 4e9, hour)
    return header + ask + struct.pack("<BHHHHB", 0, 1, 1, 1, 1, 8 | 16)


def start(words, port, **more):
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
    wait_for(port)
    return process


def porteiro(folder, *flags):
    port = free_port()
    any_port = "127.0.0.1:0"
    words = [os.environ["PORTEIRO_BIN"], "serve", "--grpc", f"127.0.0.1:{port}", "--workers", "1"]
    words += ["--http", any_port, "--admin", any_port, "--config", folder, *flags]
    return start(words, port), port


def load(port, payload):
    """Calls a second."""
    words = ["h2load", "-c", "8", "-m", "32", "-t", "1", "-n", str(CALLS), "-d", payload]
    words += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    out = subprocess.run([*words, f"http://127.0.0.1:{port}{METHOD}"], capture_output=True, text=True)
    done = re.search(r"status codes: (\d+) 2xx", out.stdout)
    if not done or int(done[1]) != CALLS:
        sys.exit(out.stdout + out.stderr)
    return float(re.search(r"([\d.]+) req/s", out.stdout)[1])


def script_alone(port, redis, depth):
    """Decisions a second by redis-benchmark, and Redis' CPU for one in microseconds."""
    # redis-benchmark cannot send zero bytes: the message is a constant of the script.
    constant = "".join(f"\\{byte:03}" for byte in script_message())
    script = f"local ARGV = {{'{constant}'}} "
    script += "".join((LUA / f"{part}.lua").read_text() for part in PARTS)
    words = ["redis-cli", "-p", str(port), "-x", "SCRIPT", "LOAD"]
    loaded = subprocess.run(words, input=script.encode(), capture_output=True, check=True)
    digest = loaded.stdout.decode().strip()
    before = cpu(redis)
    words = ["redis-benchmark", "-p", str(port), "-c", "1", "-P", str(depth), "-n", str(CALLS)]
    words += ["--csv", "-r", "1000", "EVALSHA", digest, "1", "{porteiro:b}:__rand_int__"]
    out = subprocess.run(words, capture_output=True)
    if out.returncode != 0:
        sys.exit(out.stdout.decode() + out.stderr.decode())
    used = cpu(redis) - before
    rate = float(out.stdout.decode().splitlines()[-1].split('","')[1].strip('"'))
    return rate, used / CALLS * 1e6


def main():
    running = []
    with tempfile.TemporaryDirectory() as folder:
        rules, payload = Path(folder, "rules"), Path(folder, "request")
        rules.mkdir()
        (rules / "bench.yaml").write_text(RULES)
        Path(folder, "sliced").mkdir()
        Path(folder, "sliced", "bench.yaml").write_text(SLICED)
        payload.write_bytes(grpc_request())
        try:
            measure(folder, str(rules), str(payload), running)
        finally:
            for process in running:
                process.kill()
                process.wait()


def measure(folder, rules, payload, running):
    redis_port = free_port()
    words = ["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""]
    redis = start([*words, "--appendonly", "no", "--dir", folder], redis_port)
    running.append(redis)
    noop, noop_port = porteiro(rules, "--noop")
    running.append(noop)
    # Long deadlines: what is measured is work, not the answers without the store.
    store = ["--store", f"redis://127.0.0.1:{redis_port}", "--store-deadline", "2s"]
    ours, our_port = porteiro(rules, *store)
    running.append(ours)
    sliced, sliced_port = porteiro(f"{folder}/sliced", *store, "--store-prefix", "sliced")
    running.append(sliced)
    load(noop_port, payload), load(our_port, payload), load(sliced_port, payload)

    rows = {name: [] for name in ["noop", "ours", "redis", "rate", "sliced"]}
    for _ in range(ROUNDS):
        before = cpu(noop)
        load(noop_port, payload)
        rows["noop"].append((cpu(noop) - before) / CALLS * 1e6)
        before = cpu(ours), cpu(redis)
        rows["rate"].append(load(our_port, payload))
        rows["ours"].append((cpu(ours) - before[0]) / CALLS * 1e6)
        rows["redis"].append((cpu(redis) - before[1]) / CALLS * 1e6)
        before = cpu(sliced) + cpu(redis)
        load(sliced_port, payload)
        rows["sliced"].append((cpu(sliced) + cpu(redis) - before) / CALLS * 1e6)
    # Redis decided them all: what it did not decide would have cost less.
    counted = subprocess.run(
        ["redis-cli", "-p", str(redis_port), "--raw", "EVAL", COUNTED, "0"], capture_output=True
    )
    if int(counted.stdout) != (ROUNDS + 1) * CALLS:
        sys.exit(f"Redis counted {counted.stdout} of {(ROUNDS + 1) * CALLS} calls")
    median = {name: statistics.median(values) for name, values in rows.items()}
    times = (median["ours"] + median["redis"]) / median["noop"]
    print("## Counters in Redis\n")
    print(f"`h2load -c 8 -m 32`, one descriptor of two entries, one worker, {ROUNDS} × {CALLS} calls.\n")
    print("| CPU per call | µs |\n|---|---|")
    print(f"| the empty decision (`--noop`) | {median['noop']:.1f} |")
    print(f"| porteiro | {median['ours']:.1f} |\n| Redis | {median['redis']:.1f} |")
    print(f"| porteiro and Redis ÷ empty decision | {times:.1f} × |")
    hot = median["sliced"] / median["noop"]
    print(f"| with `slice: auto`, porteiro and Redis | {median['sliced']:.1f} ({hot:.2f} ×) |\n")
    print(f"{median['rate']:.0f} calls a second, load generator on the same cores.\n")
    print("The same script alone, one request a message, `redis-benchmark -c 1 -P DEPTH`:\n")
    print("| depth | decisions/s | Redis' CPU per decision, µs | porteiro's calls ÷ these |\n|---|---|---|---|")
    for depth in DEPTHS:
        runs = [script_alone(redis_port, redis, depth) for _ in range(ROUNDS)]
        rate, used = (statistics.median(values) for values in zip(*runs))
        capacity = used / median["redis"]
        print(f"| {depth} | {rate:.0f} | {used:.1f} | {median['rate'] / rate:.2f} (by Redis' CPU {capacity:.2f}) |")


main()
