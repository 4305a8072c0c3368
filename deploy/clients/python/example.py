"""Works for a while under a lease and says what happens, one JSON object a line."""

import argparse
import json
import sys
import time

import grpc
from limiter import Limiter, Refused

STARTED = time.monotonic()


def log(event, **fields):
    at = round(time.monotonic() - STARTED, 4)
    print(json.dumps({"at": at, "event": event, **fields}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="127.0.0.1:8081")
    parser.add_argument("--upstream", default="search", help="whose permits")
    parser.add_argument("--permits", type=int, default=1)
    parser.add_argument("--ttl", type=float, help="seconds; default: the rule's")
    parser.add_argument("--within", type=float, default=30, help="seconds to ask for")
    parser.add_argument("--work", type=float, default=0.5, help="seconds")
    parser.add_argument("--fail", action="store_true", help="the work times out")
    parser.add_argument("--once", action="store_true", help="no request id: a lost call is not repeated")
    options = parser.parse_args()

    limiter = Limiter(options.target, log)
    try:
        with limiter.lease(
            "clients",
            {"upstream": options.upstream},
            permits=options.permits,
            ttl=options.ttl,
            within=options.within,
            idempotent=not options.once,
        ) as lease:
            # The work. Here it only waits; yours looks at `lease.lost` between its steps.
            if lease.lost.wait(options.work):
                raise RuntimeError("the lease was lost")
            if options.fail:
                raise TimeoutError("no answer from the upstream")
    except (Refused, grpc.RpcError) as error:
        log("gave_up", why=type(error).__name__)
        return 1
    except (TimeoutError, RuntimeError) as error:
        log("failed", why=str(error))
        return 2
    log("done")
    return 0


sys.exit(main())
