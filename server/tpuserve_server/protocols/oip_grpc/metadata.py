"""Health and metadata methods of inference.GRPCInferenceService."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from tpuserve_formats.messages.oip import (
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelReadyResponse,
    ServerLiveResponse,
    ServerReadyResponse,
)
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.protocols.oip.describing import describe_model, why_model_not_ready
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.oip.inference import parse_model_spec
from tpuserve_server.wire.oip.metadata import ServerDescription, encode_model, encode_server

_Request = TypeVar("_Request", bound=Message)


class MetadataMethods:
    """The methods, from bytes to bytes. They raise ServingErrors."""

    def __init__(self, service: InferenceService, meter: RequestMeter, server: ServerDescription) -> None:
        """Answer from `service`. `server` is the server's metadata."""
        self._service = service
        self._meter = meter
        self._server_metadata = encode_server(server)

    async def server_live(self, body: bytes, context: CallContext) -> bytes:
        """Answer ServerLive."""
        with self._meter.call("ServerLive", context):
            return ServerLiveResponse(live=not self._service.why_not_live()).SerializeToString()

    async def server_ready(self, body: bytes, context: CallContext) -> bytes:
        """Answer ServerReady."""
        with self._meter.call("ServerReady", context):
            return ServerReadyResponse(ready=self._service.is_ready()).SerializeToString()

    async def model_ready(self, body: bytes, context: CallContext) -> bytes:
        """Answer ModelReady. An unknown model is not ready: Triton's tests require it, although newer versions fail."""
        with self._meter.call("ModelReady", context) as measured:
            request = parse_request(ModelReadyRequest, body)
            # An unknown model is no error here, and must not become a label of the metrics.
            measured.model = request.name if request.name in self._service.models() else ""
            reason = why_model_not_ready(self._service, parse_model_spec(request.name, request.version))
            return ModelReadyResponse(ready=not reason).SerializeToString()

    async def server_metadata(self, body: bytes, context: CallContext) -> bytes:
        """Answer ServerMetadata."""
        with self._meter.call("ServerMetadata", context):
            return self._server_metadata

    async def model_metadata(self, body: bytes, context: CallContext) -> bytes:
        """Answer ModelMetadata."""
        with self._meter.call("ModelMetadata", context) as measured:
            request = parse_request(ModelMetadataRequest, body)
            measured.model = request.name
            return encode_model(describe_model(self._service, parse_model_spec(request.name, request.version)))


def parse_request(kind: type[_Request], body: bytes) -> _Request:
    """Parse a request. Raises InvalidArgument if `body` is malformed."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise InvalidArgument(f"Malformed {kind.DESCRIPTOR.name}") from None
