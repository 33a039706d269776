"""Table of all gRPC methods of this server."""

from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from tpuserve_formats.messages.official import MODEL_SERVICE, PREDICTION_SERVICE
from tpuserve_server.access.access import CONTROL_SERVER, DESCRIBE, OPEN, PREDICT, READ, READ_SERVER
from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.system.changes import ChangeEvent
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound, ResourceExhausted, shown
from tpuserve_server.core.terms.tracer import Tracer
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.requests.request_record import NO_OBSERVERS, Observers
from tpuserve_server.protocols.grpc_methods import LARGE_PATHS, REFLECTION_V1, REFLECTION_V1ALPHA
from tpuserve_server.protocols.oip.administration import Administration
from tpuserve_server.protocols.oip_grpc.methods import OIP_SERVICE, oip_methods
from tpuserve_server.protocols.reflection import ReflectionMethods
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod
from tpuserve_server.protocols.tf_grpc.examples import ExampleMethods
from tpuserve_server.protocols.tf_grpc.prediction import ModelMethods, PredictionMethods
from tpuserve_server.protocols.tf_grpc.profiler import ProfilerMethods
from tpuserve_server.wire.predict_layout import find_predict_contents
from tpuserve_server.wire.profiler_proto import PROFILER_SERVICE

_PREDICTION, _MODEL, _HEALTH = PREDICTION_SERVICE, MODEL_SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"]
_SERVICES = (_PREDICTION.full_name, _MODEL.full_name, OIP_SERVICE, _HEALTH.full_name, REFLECTION_V1, REFLECTION_V1ALPHA)


def rpc_table(
    service: InferenceService,
    metrics: Metrics,
    clock: Clock,
    *,
    models: ConfiguredModels | None = None,
    administration: Administration | None = None,
    logs: RequestLogs | None = None,
    tracer: Tracer | None = None,
    serialize_as_content: bool = False,
    check_method_names: bool = False,
    max_request_bytes: int = 64 << 20,
    budgets: Budgets | None = None,
    observers: Observers = NO_OBSERVERS,
    meter: RequestMeter | None = None,
) -> RpcTable:
    """Return the methods by full path. Without `models` there is no reload method, without a `tracer` no profiler.

    Without `administration` the Open Inference Protocol has only health, metadata and inference.

    `serialize_as_content` encodes outputs in tensor_content instead of the typed fields.

    `check_method_names` makes Classify, Regress and MultiInference refuse signatures with another method_name.
    `logs` receive the answered predictions; None logs nothing.
    Hosts limit the size of messages. `max_request_bytes` limits the total size of values that a message repeats,
    and the requests of a stream that are in flight. `budgets` limit the decoded objects of a message and the size of a
    response; the default is that of BudgetOptions.
    `observers` see every request at its end. A caller that measures requests itself, too, passes its `meter`.
    """
    meter = meter or RequestMeter(service, metrics, clock, "grpc", observers)
    budgets = budgets or Budgets.of(BudgetOptions(), max_request_bytes, clock)
    limits = (max_request_bytes, budgets)
    prediction = PredictionMethods(service, meter, logs, clock, *limits, as_content=serialize_as_content)
    examples = ExampleMethods(service, meter, logs, *limits, check_method_names=check_method_names)
    table: RpcTable = {
        f"/{_PREDICTION.full_name}/Predict": UnaryMethod(
            prediction.predict.handle, PREDICT, find_contents=find_predict_contents, lane=prediction.predict
        ),
        f"/{_PREDICTION.full_name}/Classify": UnaryMethod(examples.classify, PREDICT),
        f"/{_PREDICTION.full_name}/Regress": UnaryMethod(examples.regress, PREDICT),
        f"/{_PREDICTION.full_name}/MultiInference": UnaryMethod(examples.multi_inference, PREDICT),
        f"/{_PREDICTION.full_name}/GetModelMetadata": UnaryMethod(prediction.get_model_metadata, DESCRIBE),
        **_model_methods(service, models, meter, clock),
        **oip_methods(service, meter, logs, clock, administration, *limits),
        **_general_methods(service, tracer),
    }
    return limit_messages(table, LARGE_PATHS)


def _model_methods(
    service: InferenceService, models: ConfiguredModels | None, meter: RequestMeter, clock: Clock
) -> RpcTable:
    methods = ModelMethods(service, meter, clock)
    table = {f"/{_MODEL.full_name}/GetModelStatus": UnaryMethod(methods.get_model_status, READ)}
    if models is not None:
        reload = partial(methods.reload, models)
        table[f"/{_MODEL.full_name}/HandleReloadConfigRequest"] = UnaryMethod(reload, CONTROL_SERVER)
    return table


def _general_methods(service: InferenceService, tracer: Tracer | None) -> RpcTable:
    """Return the methods of health, reflection and, with a tracer, profiles."""
    # Existing probes use TensorFlow Serving's short names.
    health = HealthMethods(service, (*_SERVICES, _PREDICTION.name, _MODEL.name))
    services = _SERVICES if tracer is None else (*_SERVICES, PROFILER_SERVICE.full_name)
    reflection = StreamMethod(ReflectionMethods(services).server_reflection_info, READ)
    table: dict[str, UnaryMethod | StreamMethod] = {
        f"/{_HEALTH.full_name}/Check": UnaryMethod(health.check, OPEN),
        f"/{_HEALTH.full_name}/Watch": StreamMethod(health.watch, OPEN),
        f"/{REFLECTION_V1}/ServerReflectionInfo": reflection,
        f"/{REFLECTION_V1ALPHA}/ServerReflectionInfo": reflection,
    }
    if tracer is not None:
        methods, path = ProfilerMethods(tracer), f"/{PROFILER_SERVICE.full_name}"
        table[f"{path}/Profile"] = UnaryMethod(methods.profile, CONTROL_SERVER)
        table[f"{path}/Terminate"] = UnaryMethod(methods.terminate, CONTROL_SERVER)
        table[f"{path}/Monitor"] = UnaryMethod(methods.monitor, READ_SERVER)
    return table


# grpc.health.v1.Health (grpc/grpc, doc/health-checking.md): reports whether this server can answer predictions now.

_SERVING: bytes = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()
_NOT_SERVING: bytes = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString()
_SERVICE_UNKNOWN: bytes = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN).SerializeToString()


class HealthMethods:
    """Check and Watch. All known service names share one status, because the same models serve all of them."""

    def __init__(self, service: InferenceService, names: Collection[str]) -> None:
        """Know the services `names`. The empty name, which stands for the whole server, is always known."""
        self._service = service
        self._names = frozenset((*names, ""))

    async def check(self, body: bytes, context: CallContext) -> bytes:
        """Answer Check. Raises NotFound for an unknown name."""
        name = _decode_name(body)
        if name not in self._names:
            raise NotFound(f"unknown service {shown(name)}")
        return self._status()

    async def watch(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """Answer Watch: send the status now and after every change, until the client cancels the call.

        For an unknown name, send SERVICE_UNKNOWN and keep the stream open, as the protocol requires.
        """
        name = _decode_name(await anext(requests, b""))
        changed = ChangeEvent()
        unsubscribe = self._service.subscribe(changed)
        try:
            reported = None
            while True:
                changed.clear()
                status = self._status() if name in self._names else _SERVICE_UNKNOWN
                if status != reported:
                    reported = status
                    yield status
                await changed.wait()
        finally:
            unsubscribe()

    def _status(self) -> bytes:
        return _SERVING if self._service.is_ready() else _NOT_SERVING


def _decode_name(body: bytes) -> str:
    try:
        return str(HealthCheckRequest.FromString(body).service)
    except DecodeError:
        raise InvalidArgument("Malformed HealthCheckRequest") from None


# A megabyte of empty fields takes about 30 ms.
MAX_SMALL_BYTES: Final = 1 << 20


def limit_messages(table: RpcTable, large: Collection[str]) -> RpcTable:
    """Return a table whose methods take only small messages, except the `large` ones, by path."""
    return {path: method if path in large else _limited(method) for path, method in table.items()}


def _limited(method: UnaryMethod | StreamMethod) -> UnaryMethod | StreamMethod:
    if isinstance(method, StreamMethod):
        stream = method.handle
        return replace(
            method,
            handle=lambda messages, context: stream(_checked(messages), context),
            max_message_bytes=MAX_SMALL_BYTES,
        )

    async def handle(body: bytes, context: CallContext) -> bytes:
        _check(body)
        return await method.handle(body, context)

    # Clients without a credential may call some of these methods, so hosts should not hold a large message of one.
    return replace(method, handle=handle, max_message_bytes=MAX_SMALL_BYTES)


async def _checked(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for message in messages:
        _check(message)
        yield message


def _check(message: bytes) -> None:
    if len(message) > MAX_SMALL_BYTES:
        raise ResourceExhausted(f"Messages of this method may have at most {MAX_SMALL_BYTES} bytes; was {len(message)}")
