"""Envoy's rate limit service from a client generated from proto/."""

import grpc


def request(domain, *descriptors, **fields):
    """A RateLimitRequest; a descriptor is a list of (key, value) pairs."""
    from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
    from envoy.service.ratelimit.v3 import rls_pb2

    descriptor = ratelimit_pb2.RateLimitDescriptor
    return rls_pb2.RateLimitRequest(
        domain=domain,
        descriptors=[
            descriptor(entries=[descriptor.Entry(key=key, value=value) for key, value in entries])
            for entries in descriptors
        ],
        **fields,
    )


class Client:
    """One channel to one server, with TLS if there are `credentials`. A context manager."""

    def __init__(self, target, options=(), credentials=None):
        from envoy.service.ratelimit.v3 import rls_pb2_grpc

        options = list(options)
        if credentials is None:
            self.channel = grpc.insecure_channel(target, options=options)
        else:
            self.channel = grpc.secure_channel(target, credentials, options=options)
        self._stub = rls_pb2_grpc.RateLimitServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def ask(self, message, timeout=10.0):
        return self._stub.ShouldRateLimit(message, timeout=timeout)

    def code(self, domain, *descriptors, **fields):
        """The name of the overall code."""
        answer = self.ask(request(domain, *descriptors, **fields))
        return type(answer).Code.Name(answer.overall_code)

    def refused(self, message, timeout=10.0):
        """The gRPC status of a call that must fail: its code and its text."""
        try:
            answer = self.ask(message, timeout)
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"answered: {answer}")
