"""Open-loop load of Acquire and Release, as a program of its own: `python lease_load.py PLAN REPORT`.

The plan is JSON: `target`, `domain`, `seed`, `seconds`, and `streams`, each with `name`, `rate` (per second, Poisson),
`hold` (mean seconds, exponential), `entries`, and optionally `holder` and `criticality`. The report has for each stream a
list of requests: `[sent, answered, meant, until, held]` in seconds, those of the monotonic clock first; `meant` is how
long the work is meant to take, `until` when the release was sent, and `held` how long the server says it was held, the
last two null for a refusal.
"""

import asyncio
import json
import random
import sys
import time

import grpc
from porteiro.v1 import limiter_pb2 as api
from porteiro.v1 import limiter_pb2_grpc

TIMEOUT = 10  # of a call; no call of a run should take it


def arrivals(rate, seconds, chance):
    """Instants of a Poisson process."""
    at = chance.expovariate(rate)
    while at < seconds:
        yield at
        at += chance.expovariate(rate)


async def work(stub, request, hold, begin, seen):
    await asyncio.sleep(begin - time.monotonic())
    sent = time.monotonic()
    answer = await stub.Acquire(request, timeout=TIMEOUT)
    answered = time.monotonic()
    if answer.decision != api.AcquireResponse.GRANTED:
        assert answer.decision == api.AcquireResponse.REFUSED, answer
        seen.append((sent, answered, hold, None, None))
        return
    await asyncio.sleep(hold)
    until = time.monotonic()
    end = api.LeaseEnd(lease_id=answer.lease_id, outcome=api.LeaseEnd.SUCCESS)
    ended = await stub.Release(api.ReleaseRequest(leases=[end], holder=request.holder), timeout=TIMEOUT)
    [result] = ended.results
    assert result.status == api.ReleaseResult.RELEASED, ended
    seen.append((sent, answered, hold, until, result.held.ToNanoseconds() / 1e9))


async def main(plan):
    chance = random.Random(plan["seed"])
    report = {stream["name"]: [] for stream in plan["streams"]}
    async with grpc.aio.insecure_channel(plan["target"]) as channel:
        await channel.channel_ready()
        stub = limiter_pb2_grpc.LimiterServiceStub(channel)
        start = time.monotonic() + 0.1
        tasks = []
        for stream in plan["streams"]:
            request = api.AcquireRequest(domain=plan["domain"])
            request.holder.id = stream.get("holder", "")
            request.criticality = stream.get("criticality", 0)
            item = request.items.add()
            for key, value in stream["entries"].items():
                item.descriptor.entries.add(key=key, value=value)
            for at in arrivals(stream["rate"], plan["seconds"], chance):
                seen = report[stream["name"]]
                hold = chance.expovariate(1 / stream["hold"])
                tasks.append(work(stub, request, hold, start + at, seen))
        await asyncio.gather(*tasks)
    return {"start": start, "streams": report}


with open(sys.argv[1]) as file:
    made = asyncio.run(main(json.load(file)))
with open(sys.argv[2], "w") as file:
    json.dump(made, file)
