"""Table of all gRPC methods of this server."""

from grpc_health.v1 import health_pb2

from tpuserve_formats.messages.official import MODEL_SERVICE, PREDICTION_SERVICE
from tpuserve_server.core.budgets.decoded import DEFAULT_DECODED, DecodedBudget
from tpuserve_server.core.budgets.response import DEFAULT_RESPONSE, ResponseBudget
from tpuserve_server.core.configured_models import ConfiguredModels
from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.frontends.health import HealthMethods
from tpuserve_server.frontends.oip.administration import Administration
from tpuserve_server.frontends.oip_grpc.table import OIP_SERVICE, oip_methods
from tpuserve_server.frontends.reflection import V1_SERVICE, V1ALPHA_SERVICE, ReflectionMethods
from tpuserve_server.frontends.request_meter import RequestMeter
from tpuserve_server.frontends.rpc import RpcTable, StreamMethod, UnaryMethod
from tpuserve_server.frontends.small_messages import limit_messages
from tpuserve_server.frontends.tf_grpc.examples import ExampleMethods
from tpuserve_server.frontends.tf_grpc.model_status import ModelMethods
from tpuserve_server.frontends.tf_grpc.prediction import PredictionMethods
from tpuserve_server.frontends.tf_grpc.profiler import ProfilerMethods
from tpuserve_server.frontends.tf_grpc.reload import ReloadMethods
from tpuserve_server.identity.access import CONTROL_SERVER, DESCRIBE, OPEN, PREDICT, READ, READ_SERVER
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.telemetry.observers import NO_OBSERVERS, Observers
from tpuserve_server.wire.profiler_proto import PROFILER_SERVICE

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_SERVICES = (
    PREDICTION_SERVICE.full_name,
    MODEL_SERVICE.full_name,
    OIP_SERVICE,
    _HEALTH.full_name,
    V1_SERVICE,
    V1ALPHA_SERVICE,
)
# Methods with messages up to the host's limit. All others take small messages.
_LARGE = frozenset(
    (
        f"/{PREDICTION_SERVICE.full_name}/Predict",
        f"/{PREDICTION_SERVICE.full_name}/Classify",
        f"/{PREDICTION_SERVICE.full_name}/Regress",
        f"/{PREDICTION_SERVICE.full_name}/MultiInference",
        f"/{OIP_SERVICE}/ModelInfer",
        f"/{OIP_SERVICE}/ModelStreamInfer",
    )
)


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
    decoded: DecodedBudget = DEFAULT_DECODED,
    responses: ResponseBudget = DEFAULT_RESPONSE,
    observers: Observers = NO_OBSERVERS,
    meter: RequestMeter | None = None,
) -> RpcTable:
    """Return the methods by full path. Without `models` there is no reload method, without a `tracer` no profiler.

    Without `administration` the Open Inference Protocol has only health, metadata and inference.

    `serialize_as_content` encodes outputs in tensor_content instead of the typed fields.

    `check_method_names` makes Classify, Regress and MultiInference refuse signatures with another method_name.
    `logs` receive the answered predictions; None logs nothing.
    Hosts limit the size of messages. `max_request_bytes` limits the total size of values that a message repeats,
    and the requests of a stream that are in flight. `decoded` limits the decoded objects of a message, and
    `responses` the size of a response.
    `observers` see every request at its end. A caller that measures requests itself, too, passes its `meter`.
    """
    meter = meter or RequestMeter(service, metrics, clock, "grpc", observers)
    prediction = PredictionMethods(
        service,
        meter,
        logs,
        clock,
        as_content=serialize_as_content,
        max_repeated_bytes=max_request_bytes,
        decoded=decoded,
        responses=responses,
    )
    examples = ExampleMethods(
        service,
        meter,
        logs,
        check_method_names=check_method_names,
        max_repeated_bytes=max_request_bytes,
        decoded=decoded,
        responses=responses,
    )
    model = ModelMethods(service, meter)
    # Existing probes use TensorFlow Serving's short names.
    health = HealthMethods(service, (*_SERVICES, PREDICTION_SERVICE.name, MODEL_SERVICE.name))
    profiler = _profiler_methods(tracer) if tracer is not None else {}
    listed = (*_SERVICES, PROFILER_SERVICE.full_name) if profiler else _SERVICES
    reflection = StreamMethod(ReflectionMethods(listed).server_reflection_info, READ)
    reload = ReloadMethods(service, models, meter, clock).handle_reload_config_request if models is not None else None
    table: RpcTable = {
        f"/{PREDICTION_SERVICE.full_name}/Predict": UnaryMethod(prediction.predict, PREDICT),
        f"/{PREDICTION_SERVICE.full_name}/Classify": UnaryMethod(examples.classify, PREDICT),
        f"/{PREDICTION_SERVICE.full_name}/Regress": UnaryMethod(examples.regress, PREDICT),
        f"/{PREDICTION_SERVICE.full_name}/MultiInference": UnaryMethod(examples.multi_inference, PREDICT),
        f"/{PREDICTION_SERVICE.full_name}/GetModelMetadata": UnaryMethod(prediction.get_model_metadata, DESCRIBE),
        f"/{MODEL_SERVICE.full_name}/GetModelStatus": UnaryMethod(model.get_model_status, READ),
        **(
            {f"/{MODEL_SERVICE.full_name}/HandleReloadConfigRequest": UnaryMethod(reload, CONTROL_SERVER)}
            if reload is not None
            else {}
        ),
        **profiler,
        **oip_methods(
            service,
            meter,
            logs,
            clock,
            administration,
            max_request_bytes=max_request_bytes,
            decoded=decoded,
            responses=responses,
        ),
        f"/{_HEALTH.full_name}/Check": UnaryMethod(health.check, OPEN),
        f"/{_HEALTH.full_name}/Watch": StreamMethod(health.watch, OPEN),
        f"/{V1_SERVICE}/ServerReflectionInfo": reflection,
        f"/{V1ALPHA_SERVICE}/ServerReflectionInfo": reflection,
    }
    return limit_messages(table, _LARGE)


def _profiler_methods(tracer: Tracer) -> dict[str, UnaryMethod]:
    methods = ProfilerMethods(tracer)
    path = f"/{PROFILER_SERVICE.full_name}"
    return {
        f"{path}/Profile": UnaryMethod(methods.profile, CONTROL_SERVER),
        f"{path}/Terminate": UnaryMethod(methods.terminate, CONTROL_SERVER),
        f"{path}/Monitor": UnaryMethod(methods.monitor, READ_SERVER),
    }
