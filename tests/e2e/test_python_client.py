"""A Python client, generated from proto/ by grpcio-tools: the service, health, reflection."""

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from support import RULES, rls

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"


@pytest.fixture(scope="module")
def porteiro(serve):
    return serve(RULES / "plain.yaml")


@pytest.fixture(scope="module")
def client(generated, porteiro):
    with rls.Client(porteiro.target) as client:
        yield client


def test_a_decision_with_everything_in_it(client, generated):
    answers = generated("envoy.service.ratelimit.v3.rls_pb2").RateLimitResponse
    both = [[("user", "ada")], [("nobody", "knows")], [("open", "")]]
    for remaining, code in ((1, answers.OK), (0, answers.OK), (0, answers.OVER_LIMIT)):
        answer = client.ask(rls.request("plain", *both))
        assert answer.overall_code == code
        limited, unknown, unlimited = answer.statuses
        assert limited.code == code
        assert limited.limit_remaining == remaining
        assert limited.current_limit.name == "per-user"
        assert limited.current_limit.requests_per_unit == 2
        assert limited.current_limit.unit == answers.RateLimit.YEAR
        assert 1 <= limited.duration_until_reset.seconds <= 365 * 86_400
        assert unknown.code == answers.OK and not unknown.HasField("current_limit")
        assert unlimited.code == answers.OK and unlimited.limit_remaining == 2**32 - 1


def test_hits_peek_and_refund(client):
    from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2

    def descriptor(hits, **fields):
        message = ratelimit_pb2.RateLimitDescriptor(
            entries=[ratelimit_pb2.RateLimitDescriptor.Entry(key="user", value="hits")], **fields
        )
        message.hits_addend.value = hits
        return message

    def ask(*descriptors):
        message = rls.request("plain")
        message.descriptors.extend(descriptors)
        answer = client.ask(message)
        return type(answer).Code.Name(answer.overall_code), answer.statuses[0].limit_remaining

    assert ask(descriptor(0)) == ("OK", 2), "a peek"
    assert ask(descriptor(2)) == ("OK", 0)
    assert ask(descriptor(0)) == ("OVER_LIMIT", 0), "a peek at an empty counter"
    assert ask(descriptor(1, is_negative_hits=True)) == ("OK", 1), "a refund"
    assert ask(descriptor(1)) == ("OK", 0)
    assert ask(descriptor(1)) == ("OVER_LIMIT", 0)


@pytest.mark.parametrize("name", ["", "ratelimit"])
def test_health(client, name):
    stub = health_pb2_grpc.HealthStub(client.channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_health_of_a_service_that_is_not_there(client):
    stub = health_pb2_grpc.HealthStub(client.channel)
    with pytest.raises(grpc.RpcError) as refused:
        stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_the_services(client, version):
    # The messages of both versions are the same; only the service's name differs.
    call = client.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(iter(call(iter([request]), timeout=10)))
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


def test_a_call_from_nothing_but_reflection(client):
    """What grpcurl does: learn the messages from the server, then call."""
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(client.channel))
    method = pool.FindServiceByName(SERVICE).FindMethodByName("ShouldRateLimit")
    request = message_factory.GetMessageClass(method.input_type)
    response = message_factory.GetMessageClass(method.output_type)
    message = request(domain="plain")
    message.descriptors.add().entries.add(key="user", value="reflection")
    call = client.channel.unary_unary(
        f"/{SERVICE}/ShouldRateLimit",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    codes = [call(message, timeout=10).overall_code for _ in range(3)]
    assert codes == [1, 1, 2]
