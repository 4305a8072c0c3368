"""Takes one lease and keeps it until it is killed: `python lease_holder.py TARGET DOMAIN KEY VALUE [TTL]`.

With a TTL (whole seconds) by Acquire, otherwise over a Session. Prints when the request was sent and answered, seconds
of the monotonic clock.
"""

import queue
import sys
import threading
import time

import grpc
from porteiro.v1 import limiter_pb2 as api
from porteiro.v1 import limiter_pb2_grpc

target, domain, key, value, *ttl = sys.argv[1:]
stub = limiter_pb2_grpc.LimiterServiceStub(grpc.insecure_channel(target))
request = api.AcquireRequest(domain=domain)
request.items.add().descriptor.entries.add(key=key, value=value)
if ttl:
    request.ttl.seconds = int(ttl[0])
    sent = time.monotonic()
    answer = stub.Acquire(request, timeout=10)
else:
    say = queue.Queue()
    say.put(api.SessionRequest(open=api.SessionRequest.Open(domain=domain)))
    answers = stub.Session(iter(say.get, None))
    assert next(answers).HasField("opened")
    sent = time.monotonic()
    say.put(api.SessionRequest(acquire=request))
    answer = next(answers).acquired
assert answer.decision == api.AcquireResponse.GRANTED, answer
print(sent, time.monotonic(), flush=True)
threading.Event().wait()
