"""porteiro's own service from a client generated from proto/."""

import grpc


class Limiter:
    """One channel to one server. A context manager."""

    def __init__(self, target, domain):
        from porteiro.v1 import limiter_pb2, limiter_pb2_grpc

        self.api = limiter_pb2
        self.domain = domain
        self.channel = grpc.insecure_channel(target)
        self.stub = limiter_pb2_grpc.LimiterServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def request(self, *entries, permits=1, **fields):
        """An AcquireRequest of one item; entries are (key, value) pairs."""
        request = self.api.AcquireRequest(domain=self.domain, **fields)
        item = request.items.add(permits=permits)
        for key, value in entries:
            item.descriptor.entries.add(key=key, value=value)
        return request

    def acquire(self, *entries, **fields):
        """The answer to an Acquire."""
        return self.stub.Acquire(self.request(*entries, **fields), timeout=10)

    def granted(self, *entries, **fields):
        """The id of a lease that must be granted."""
        answer = self.acquire(*entries, **fields)
        assert answer.decision == answer.GRANTED, answer
        return answer.lease_id

    def release(self, lease_id):
        """The name of the release's status."""
        end = self.api.LeaseEnd(lease_id=lease_id, outcome=self.api.LeaseEnd.SUCCESS)
        answer = self.stub.Release(self.api.ReleaseRequest(leases=[end]), timeout=10)
        return self.api.ReleaseResult.Status.Name(answer.results[0].status)

    def in_flight(self, *entries):
        """Permits of one key that are out."""
        request = self.api.PeekRequest(domain=self.domain)
        descriptor = request.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
        answer = self.stub.Peek(request, timeout=10)
        [limit] = answer.descriptors[0].limits
        return limit.used
