"""What a flood of addresses does to the latency of one steady caller, as JSON on stdout.

    PORTEIRO_BIN=target/release/porteiro python3 benches/flood.py

The steady caller is measured alone and beside 200,000 addresses in ten seconds, in turn, round after
round; the ratio of the medians is told. Server, flood and caller share the machine: on few cores the
ratio is that of the cores, too, and `flood_kept_up` says whether the flood came as fast as it should.
"""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "e2e"))

from support.bench import Bench  # noqa: E402  (the path comes first)
from support.porteiro import Porteiro  # noqa: E402

ROUNDS = int(os.environ.get("PORTEIRO_BENCH_ROUNDS", "3"))
SECONDS, ADDRESSES = 10, 200_000
RULES = """\
domain: edge
descriptors:
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: tenant, rate_limit: {unit: minute, requests_per_unit: 1000}}
"""


def steady(folder, name, porteiro):
    """The caller: a hundred calls a second on a connection of its own."""
    descriptor = {"domain": "edge", "descriptor": "tenant=steady", "connections": 1}
    return Bench(
        folder, name, porteiro, rate=100, warm_up="1s", duration=f"{SECONDS - 2}s", **descriptor
    )


def flood(folder, name, porteiro):
    """Addresses that come once."""
    descriptor = {"domain": "edge", "descriptor": "remote_address={key}", "keys": 10**12}
    rate = ADDRESSES // SECONDS
    return Bench(
        folder, name, porteiro, rate=rate, warm_up="0s", duration=f"{SECONDS}s", drain="30s", **descriptor
    )


def main():
    alone, beside, kept_up = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "rules.yaml").write_text(RULES)
        porteiro = Porteiro(folder / "porteiro.log", folder / "rules.yaml", ("--max-keys", "20000"))
        children = [porteiro]
        try:
            porteiro.until_ready()
            for number in range(ROUNDS):
                children.append(steady(folder, f"alone-{number}", porteiro))
                alone.append(children[-1].result()["latency"]["p99"])
                children.append(flood(folder, f"flood-{number}", porteiro))
                children.append(steady(folder, f"beside-{number}", porteiro))
                beside.append(children[-1].result()["latency"]["p99"])
                kept_up.append(children[-2].result()["limit"] == "none")
        finally:
            for child in reversed(children):
                child.kill()
    medians = statistics.median(alone), statistics.median(beside)
    report = {
        "p99_alone_us": alone,
        "p99_beside_us": beside,
        "ratio_of_medians": round(medians[1] / medians[0], 2),
        "flood_kept_up": kept_up,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
