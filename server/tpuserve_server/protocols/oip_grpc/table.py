"""Methods of inference.GRPCInferenceService by path."""

from typing import Final

from tpuserve_formats.messages.oip import GRPC_INFERENCE_SERVICE
from tpuserve_server.access.access import DESCRIBE, OPEN, PREDICT, READ
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.protocols.oip.administration import Administration
from tpuserve_server.protocols.oip.describing import describe_server
from tpuserve_server.protocols.oip_grpc.administration import AdministrationMethods
from tpuserve_server.protocols.oip_grpc.inference import InferenceMethods
from tpuserve_server.protocols.oip_grpc.metadata import MetadataMethods
from tpuserve_server.protocols.oip_grpc.stream import StreamMethods
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import RpcTable, StreamMethod, UnaryMethod

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
        "ModelInfer": UnaryMethod(inference.model_infer, PREDICT),
        "ModelStreamInfer": StreamMethod(stream.model_stream_infer, PREDICT),
        "ServerLive": UnaryMethod(metadata.server_live, OPEN),
        "ServerReady": UnaryMethod(metadata.server_ready, OPEN),
        "ServerMetadata": UnaryMethod(metadata.server_metadata, READ),
        "ModelReady": UnaryMethod(metadata.model_ready, DESCRIBE),
        "ModelMetadata": UnaryMethod(metadata.model_metadata, DESCRIBE),
        **(AdministrationMethods(administration, meter).by_name() if administration else {}),
    }
    return {f"/{OIP_SERVICE}/{name}": method for name, method in methods.items()}
