"""A control plane as Envoy Gateway's: the state of the world over one stream, both sides with
certificates, and a snapshot for one node only."""

import queue
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import descriptor_pb2, message_factory
from grpc_tools import protoc

from support import protos
from support.wait import until

NODE = "envoy-ratelimit"
"""The key of the snapshot: any other node is told nothing."""

TYPE_URL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
_METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


def _messages(folder):
    """Classes of the messages by full name. No modules: a package `google` would hide protobuf's."""
    out = folder / "discovery.pb"
    sources = ("envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto")
    words = [f"-I{protos.PROTO}", f"-I{protos.WELL_KNOWN}", "--include_imports"]
    assert protoc.main(["protoc", *words, f"--descriptor_set_out={out}", *sources]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return message_factory.GetMessages(files)


class ControlPlane:
    """Listens on a free port of loopback. A context manager.

    `answers` are what clients said to what they were told: (version, nonce, error text or None).
    """

    def __init__(self, folder, certificate, key, authority):
        classes = _messages(folder)
        self._request = classes["envoy.service.discovery.v3.DiscoveryRequest"]
        self._response = classes["envoy.service.discovery.v3.DiscoveryResponse"]
        self._config = classes["ratelimit.config.ratelimit.v3.RateLimitConfig"]
        self.answers = []
        self._worlds = queue.Queue()
        self._server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=self._request.FromString,
            response_serializer=self._response.SerializeToString,
        )
        service, method = _METHOD.strip("/").split("/")
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: handler})]
        )
        credentials = grpc.ssl_server_credentials(
            [(key.read_bytes(), certificate.read_bytes())],
            root_certificates=authority.read_bytes(),
            require_client_auth=True,
        )
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._worlds.put(None)
        self._server.stop(None)

    def _stream(self, requests, context):
        first = next(requests)
        assert (first.version_info, first.response_nonce) == ("", "")
        assert first.type_url == TYPE_URL and not first.resource_names
        if first.node.id != NODE:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no snapshot for {first.node.id}")
        while (response := self._worlds.get()) is not None:
            yield response
            said = next(requests)
            error = said.error_detail.message if said.HasField("error_detail") else None
            self.answers.append((said.version_info, said.response_nonce, error))

    def tell(self, version, *configs):
        """Sends all there is, and waits for the answer. A configuration is a dictionary of the
        fields of RateLimitConfig."""
        response = self._response(version_info=version, type_url=TYPE_URL, nonce=f"nonce {version}")
        for config in configs:
            response.resources.add(
                type_url=TYPE_URL, value=self._config(**config).SerializeToString()
            )
        known = len(self.answers)
        self._worlds.put(response)
        until(lambda: len(self.answers) > known, "an answer to the configuration")
        return self.answers[-1]
