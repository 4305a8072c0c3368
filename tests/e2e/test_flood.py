"""200,000 addresses, each seen once, beside one caller who was there before."""

import pytest

from support import rls
from support.bench import Bench
from support.memory import resident

pytestmark = pytest.mark.alone

LIMIT, ADDRESSES, ROOM = 100, 200_000, 20_000
RULES = f"""\
domain: edge
descriptors:
- {{key: remote_address, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}
- {{key: tenant, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}
"""


def test_a_flood_of_addresses_takes_no_limit_from_a_steady_caller(generated, serve, folder, started):
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    porteiro = serve(rules, flags=("--max-keys", str(ROOM)))
    with rls.Client(porteiro.target) as client:

        def passes():
            return client.code("edge", [("tenant", "steady")]) == "OK"

        passed = sum(passes() for _ in range(LIMIT // 5))
        before = resident(porteiro)
        flood = Bench(
            folder,
            "flood",
            porteiro,
            domain="edge",
            descriptor="remote_address={key}",
            keys=10**12,  # nearly all of them different
            rate=ADDRESSES // 10,
            warm_up="0s",
            duration="10s",
            drain="60s",
        )
        started.append(flood)
        asked = 0
        while flood.running():
            passed += passes()
            asked += 1
        step = flood.result()
        assert step["passed"] == ADDRESSES and step["failures"] == {}, step
        passed += sum(passes() for _ in range(LIMIT))
        assert asked > 10, "it was answered meanwhile"
        assert passed == LIMIT, f"{asked} calls during the flood"
    assert porteiro.metric("porteiro_store_evicted_total") > (ADDRESSES - ROOM) * 0.99
    # A place takes some tens of bytes; the rest is buffers of connections.
    assert porteiro.metric("porteiro_store_keys") <= ROOM * 1.01
    assert resident(porteiro) - before < 64 * 1024
