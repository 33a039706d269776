"""Methods of inference.GRPCInferenceService by path, and those for health, metadata and administration."""

from collections.abc import Mapping
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from tpuserve_formats.messages.oip import (
    GRPC_INFERENCE_SERVICE,
    CudaSharedMemoryRegisterRequest,
    CudaSharedMemoryStatusResponse,
    CudaSharedMemoryUnregisterResponse,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelRepositoryParameter,
    ModelStatisticsRequest,
    RepositoryIndexRequest,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
    ServerLiveResponse,
    ServerReadyResponse,
    SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryRegisterResponse,
    SystemSharedMemoryStatusRequest,
    SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse,
    TraceSettingRequest,
)
from tpuserve_server.access.access import CONTROL, CONTROL_SERVER, DESCRIBE, OPEN, PREDICT, READ
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.protocols.oip.administration import Administration, check_unchanged, log_settings, trace_settings
from tpuserve_server.protocols.oip.models import describe_config, describe_model, describe_server, why_model_not_ready
from tpuserve_server.protocols.oip.shared_memory import cuda_unsupported
from tpuserve_server.protocols.oip_grpc.inference import InferenceMethods, StreamMethods
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod
from tpuserve_server.wire.oip.control_messages import (
    encode_index,
    encode_log_settings,
    encode_regions,
    encode_trace_settings,
    read_log_settings,
    read_trace_settings,
)
from tpuserve_server.wire.oip.infer_proto import find_raw_contents
from tpuserve_server.wire.oip.inference import parse_model_spec
from tpuserve_server.wire.oip.metadata import (
    ServerDescription,
    encode_model,
    encode_model_config,
    encode_server,
    encode_statistics,
)

OIP_SERVICE: Final[str] = GRPC_INFERENCE_SERVICE.full_name


def oip_methods(
    service: InferenceService,
    meter: RequestMeter,
    logs: RequestLogs | None,
    clock: Clock,
    administration: Administration | None,
    max_request_bytes: int,
    budgets: Budgets,
) -> RpcTable:
    """Return the methods. A new method adds a line here. Without `administration` its methods are missing.

    `budgets` limit the decoded objects of a request and the size of a response. A stream may have `max_request_bytes`
    in flight, and one request more.
    """
    regions = administration.regions if administration else None
    inference = InferenceMethods(service, meter, logs, clock, regions, budgets)
    stream = StreamMethods(inference, max_request_bytes)
    metadata = MetadataMethods(service, meter, administration.server if administration else describe_server())
    methods: dict[str, UnaryMethod | StreamMethod] = {
        "ModelInfer": UnaryMethod(
            inference.model_infer.handle, PREDICT, find_contents=find_raw_contents, lane=inference.model_infer
        ),
        "ModelStreamInfer": StreamMethod(stream.model_stream_infer, PREDICT, find_contents=find_raw_contents),
        "ServerLive": UnaryMethod(metadata.server_live, OPEN),
        "ServerReady": UnaryMethod(metadata.server_ready, OPEN),
        "ServerMetadata": UnaryMethod(metadata.server_metadata, READ),
        "ModelReady": UnaryMethod(metadata.model_ready, DESCRIBE),
        "ModelMetadata": UnaryMethod(metadata.model_metadata, DESCRIBE),
        **(AdministrationMethods(administration, meter).by_name() if administration else {}),
    }
    return {f"/{OIP_SERVICE}/{name}": method for name, method in methods.items()}


_Request = TypeVar("_Request", bound=Message)


class MetadataMethods:
    """Methods for health and metadata, from bytes to bytes. They raise ServingErrors."""

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
            request = _parse_request(ModelReadyRequest, body)
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
            request = _parse_request(ModelMetadataRequest, body)
            measured.model = request.name
            spec = parse_model_spec(request.name, request.version)
            await self._service.loaded(spec, context.deadline)
            return encode_model(describe_model(self._service, spec))


def _parse_request(kind: type[_Request], body: bytes) -> _Request:
    """Parse a request. Raises InvalidArgument if `body` is malformed."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise InvalidArgument(f"Malformed {kind.DESCRIPTOR.name}") from None


class AdministrationMethods:
    """Methods for administration, from bytes to bytes. They raise ServingErrors."""

    def __init__(self, administration: Administration, meter: RequestMeter) -> None:
        """Answer from `administration`."""
        self._administration = administration
        self._meter = meter

    def by_name(self) -> dict[str, UnaryMethod]:
        """Return the methods by their name in the service."""
        # `Control` checks the messages that change settings. There are no regions of CUDA: these methods answer the
        # same to each client.
        return {
            "ModelConfig": UnaryMethod(self.model_config, READ),
            "ModelStatistics": UnaryMethod(self.model_statistics, READ),
            "RepositoryIndex": UnaryMethod(self.repository_index, READ),
            "RepositoryModelLoad": UnaryMethod(self.repository_model_load, CONTROL),
            "RepositoryModelUnload": UnaryMethod(self.repository_model_unload, CONTROL),
            "TraceSetting": UnaryMethod(self.trace_setting, READ),
            "LogSettings": UnaryMethod(self.log_settings, READ),
            "SystemSharedMemoryStatus": UnaryMethod(self.region_status, CONTROL_SERVER),
            "SystemSharedMemoryRegister": UnaryMethod(self.region_register, CONTROL_SERVER),
            "SystemSharedMemoryUnregister": UnaryMethod(self.region_unregister, CONTROL_SERVER),
            "CudaSharedMemoryStatus": UnaryMethod(self.cuda_status, READ),
            "CudaSharedMemoryRegister": UnaryMethod(self.cuda_register, READ),
            "CudaSharedMemoryUnregister": UnaryMethod(self.cuda_unregister, READ),
        }

    async def model_config(self, body: bytes, context: CallContext) -> bytes:
        """Answer ModelConfig."""
        with self._meter.call("ModelConfig", context) as measured:
            request = _parse_request(ModelConfigRequest, body)
            measured.model = request.name
            spec = parse_model_spec(request.name, request.version)
            administration = self._administration
            await administration.service.loaded(spec, context.deadline)
            return encode_model_config(describe_config(administration.service, administration.models, spec))

    async def model_statistics(self, body: bytes, context: CallContext) -> bytes:
        """Answer ModelStatistics."""
        with self._meter.call("ModelStatistics", context) as measured:
            request = _parse_request(ModelStatisticsRequest, body)
            measured.model = request.name
            spec = parse_model_spec(request.name, request.version)
            return encode_statistics(self._administration.statistics(spec))

    async def repository_index(self, body: bytes, context: CallContext) -> bytes:
        """Answer RepositoryIndex."""
        with self._meter.call("RepositoryIndex", context):
            request = _parse_request(RepositoryIndexRequest, body)
            _refuse_repository(request.repository_name)
            return encode_index(self._administration.repository.index(only_ready=request.ready))

    async def repository_model_load(self, body: bytes, context: CallContext) -> bytes:
        """Answer RepositoryModelLoad when the model serves, or at the client's deadline."""
        with self._meter.call("RepositoryModelLoad", context) as measured:
            request = _parse_request(RepositoryModelLoadRequest, body)
            measured.model = request.model_name
            _refuse_repository(request.repository_name)
            parameters = _read_load_parameters(request.parameters)
            await self._administration.repository.load(request.model_name, parameters, context.deadline)
            return RepositoryModelLoadResponse().SerializeToString()

    async def repository_model_unload(self, body: bytes, context: CallContext) -> bytes:
        """Answer RepositoryModelUnload."""
        with self._meter.call("RepositoryModelUnload", context) as measured:
            request = _parse_request(RepositoryModelUnloadRequest, body)
            if request.model_name in self._administration.service.models():
                # An unknown model is no error, and must not become a label of the metrics.
                measured.model = request.model_name
            _refuse_repository(request.repository_name)
            dependents = request.parameters.get("unload_dependents")
            if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
                raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            with_dependents = dependents is not None and dependents.bool_param
            await self._administration.repository.unload(request.model_name, with_dependents=with_dependents)
            return RepositoryModelUnloadResponse().SerializeToString()

    async def trace_setting(self, body: bytes, context: CallContext) -> bytes:
        """Answer TraceSetting."""
        with self._meter.call("TraceSetting", context) as measured:
            request = _parse_request(TraceSettingRequest, body)
            measured.model = request.model_name
            current = trace_settings(self._administration.service, request.model_name)
            check_unchanged(current, read_trace_settings(request))
            return encode_trace_settings(current)

    async def log_settings(self, body: bytes, context: CallContext) -> bytes:
        """Answer LogSettings."""
        with self._meter.call("LogSettings", context):
            current = log_settings()
            check_unchanged(current, read_log_settings(_parse_request(LogSettingsRequest, body)))
            return encode_log_settings(current)

    async def region_status(self, body: bytes, context: CallContext) -> bytes:
        """Answer SystemSharedMemoryStatus."""
        with self._meter.call("SystemSharedMemoryStatus", context):
            name = _parse_request(SystemSharedMemoryStatusRequest, body).name
            return encode_regions(self._administration.regions.status(name or None))

    async def region_register(self, body: bytes, context: CallContext) -> bytes:
        """Answer SystemSharedMemoryRegister."""
        with self._meter.call("SystemSharedMemoryRegister", context):
            request = _parse_request(SystemSharedMemoryRegisterRequest, body)
            self._administration.regions.register(request.name, request.key, request.offset, request.byte_size)
            return SystemSharedMemoryRegisterResponse().SerializeToString()

    async def region_unregister(self, body: bytes, context: CallContext) -> bytes:
        """Answer SystemSharedMemoryUnregister. An empty name means all regions."""
        with self._meter.call("SystemSharedMemoryUnregister", context):
            name = _parse_request(SystemSharedMemoryUnregisterRequest, body).name
            self._administration.regions.unregister(name or None)
            return SystemSharedMemoryUnregisterResponse().SerializeToString()

    async def cuda_status(self, body: bytes, context: CallContext) -> bytes:
        """Answer CudaSharedMemoryStatus: there are no regions."""
        with self._meter.call("CudaSharedMemoryStatus", context):
            return CudaSharedMemoryStatusResponse().SerializeToString()

    async def cuda_register(self, body: bytes, context: CallContext) -> bytes:
        """Refuse CudaSharedMemoryRegister."""
        with self._meter.call("CudaSharedMemoryRegister", context):
            raise cuda_unsupported(_parse_request(CudaSharedMemoryRegisterRequest, body).name)

    async def cuda_unregister(self, body: bytes, context: CallContext) -> bytes:
        """Answer CudaSharedMemoryUnregister, which clients call before they use system shared memory."""
        with self._meter.call("CudaSharedMemoryUnregister", context):
            return CudaSharedMemoryUnregisterResponse().SerializeToString()


def _refuse_repository(name: str) -> None:
    if name:
        raise Unimplemented("'repository_name' specification is not supported")


def _read_load_parameters(parameters: Mapping[str, ModelRepositoryParameter]) -> dict[str, str | bytes]:
    values: dict[str, str | bytes] = {}
    for name, parameter in parameters.items():
        expected = "bytes_param" if name.startswith("file:") else "string_param"
        if parameter.WhichOneof("parameter_choice") != expected:
            raise InvalidArgument(f"invalid value type for load parameter '{name[:64]}', expected {expected}.")
        values[name] = parameter.bytes_param if expected == "bytes_param" else parameter.string_param
    return values
