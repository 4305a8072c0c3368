"""Leases on work in flight from porteiro, taken politely.

The code under `generated` is made from proto/; README.md has the command.
"""

import contextlib
import random
import sys
import threading
import time
import uuid
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration

sys.path.insert(0, str(Path(__file__).parent / "generated"))

from porteiro.v1 import limiter_pb2 as api
from porteiro.v1 import limiter_pb2_grpc

TRIES = 5
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0  # seconds, after calls that failed
HINT_JITTER = 0.1  # those who were told the same time should not come back together
RENEW_AGAIN = 0.2  # seconds, when nobody answered

GRANTED = (api.AcquireResponse.GRANTED, api.AcquireResponse.REPLAYED)
LATER = (api.AcquireResponse.REFUSED, api.AcquireResponse.DRAINING)

# The connection failed, so the call may or may not have been decided.
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

# Notices a server that is gone without a word.
KEEPALIVE = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000)]


class Refused(Exception):
    """There is no permit, and no point in asking on."""

    def __init__(self, answer):
        super().__init__(decision(answer))
        self.answer = answer
        """`http_status` says what an HTTP server should answer, `retry_after` when to come back."""


def decision(answer):
    return api.AcquireResponse.Decision.Name(answer.decision)


class Limiter:
    """A connection to one porteiro. `log(event, **fields)` is told what happens."""

    def __init__(self, target, log=lambda event, **fields: None):
        self.stub = limiter_pb2_grpc.LimiterServiceStub(grpc.insecure_channel(target, KEEPALIVE))
        self.log = log

    @contextlib.contextmanager
    def lease(self, domain, entries, permits=1, ttl=None, within=30.0, idempotent=True):
        """`with limiter.lease("clients", {"upstream": "search"}) as lease: …`

        Asks for at most `within` seconds, renews while the block runs, and releases at its end:
        SUCCESS when it ended well, DROPPED after a TimeoutError (too little capacity), IGNORED
        after any other exception (says nothing about capacity).

        With `idempotent` the request carries an id, so a call whose answer was lost can be
        repeated without taking a second lease. Without one such a call is not repeated.
        """
        request = api.AcquireRequest(
            domain=domain,
            request_id=uuid.uuid4().bytes if idempotent else b"",
            ttl=duration(ttl),
        )
        item = request.items.add(permits=permits)
        for key, value in entries.items():
            item.descriptor.entries.add(key=key, value=value)

        lease = self._acquire(request, within)
        outcome = api.LeaseEnd.IGNORED
        try:
            yield lease
            outcome = api.LeaseEnd.SUCCESS
        except TimeoutError:
            outcome = api.LeaseEnd.DROPPED
            raise
        finally:
            lease.release(outcome)

    def _acquire(self, request, within):
        deadline = time.monotonic() + within
        for number in range(1, TRIES + 1):
            asked = time.monotonic()
            wait = None
            try:
                # The server knows this deadline: it says `hopeless` when coming back is too late.
                answer = self.stub.Acquire(request, timeout=max(deadline - asked, 0.001))
            except grpc.RpcError as error:
                self.log("lost", number=number, code=error.code().name)
                if error.code() not in LOST or not request.request_id:
                    raise
                # Full jitter: anything up to a bound that doubles.
                wait = random.uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** (number - 1)))
                if number == TRIES or time.monotonic() + wait > deadline:
                    raise
            else:
                if answer.decision in GRANTED:
                    self.log("granted", number=number)
                    return Lease(self, request, answer, asked)
                told = seconds(answer.retry_after) if answer.HasField("retry_after") else None
                self.log("refused", number=number, decision=decision(answer), retry_after=told)
                if answer.decision not in LATER or answer.hopeless or told is None or number == TRIES:
                    raise Refused(answer)
                wait = told * random.uniform(1, 1 + HINT_JITTER)  # never less than told
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")


class Lease:
    """Permits that are held, and renewed by a thread of their own.

    When `lost` is set, the lease ended early: stop the work, somebody else may have the permits.
    """

    def __init__(self, limiter, request, answer, asked):
        self.id, self.fence, self.lost = answer.lease_id, answer.fence, threading.Event()
        self._limiter, self._ttl, self._released = limiter, request.ttl, threading.Event()
        # Counted from before the call: the server's own countdown began later.
        self._ends = asked + seconds(answer.expires_in)
        self._renew_at = asked + seconds(answer.renew_after)
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        if self.id:  # without one no item had a limit on work in flight
            self._keeper.start()

    def _keep(self):
        while not self._released.wait(max(self._renew_at - time.monotonic(), 0)):
            asked = time.monotonic()
            renewal = api.LeaseRenewal(lease_id=self.id, ttl=self._ttl)
            try:
                left = max(self._ends - asked, 0.001)
                answer = self._limiter.stub.Renew(api.RenewRequest(leases=[renewal]), timeout=left)
            except grpc.RpcError:
                self._renew_at = time.monotonic() + RENEW_AGAIN
                gone = self._renew_at >= self._ends
            else:
                result = answer.results[0]
                gone = result.status != api.RenewResult.RENEWED
                self._ends = asked + seconds(result.expires_in)
                self._renew_at = asked + seconds(result.expires_in) / 2
                self._limiter.log("renewed", status=api.RenewResult.Status.Name(result.status))
            if gone:
                self.lost.set()
                return

    def release(self, outcome):
        """Gives the permits back. Lost on the way, they come back at the end of the TTL."""
        self._released.set()
        if not self.id:
            return
        end = api.LeaseEnd(lease_id=self.id, outcome=outcome)
        try:
            answer = self._limiter.stub.Release(api.ReleaseRequest(leases=[end]), timeout=5)
        except grpc.RpcError as error:
            self._limiter.log("released", status=error.code().name)
        else:
            status = api.ReleaseResult.Status.Name(answer.results[0].status)
            self._limiter.log("released", status=status)


def duration(value):
    """Seconds as a message; None stays absent."""
    if value is None:
        return None
    return Duration(seconds=int(value), nanos=int(value % 1 * 1e9))


def seconds(message):
    return message.seconds + message.nanos / 1e9
