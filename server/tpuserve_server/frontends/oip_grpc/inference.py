"""ModelInfer, and the requests of ModelStreamInfer, of inference.GRPCInferenceService."""

from tpuserve_server.core.service import InferenceService
from tpuserve_server.frontends.oip.inferring import Inferring
from tpuserve_server.frontends.request_meter import RequestMeter
from tpuserve_server.frontends.rpc import CallContext
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.oip.infer_proto import encode_infer_response, parse_infer_request


class InferenceMethods:
    """From bytes to bytes. They raise ServingErrors."""

    def __init__(self, service: InferenceService, meter: RequestMeter, logs: RequestLogs | None) -> None:
        """Answer from `service`; `logs` receive the answered requests, None logs nothing."""
        self._meter = meter
        self._inferring = Inferring(service, logs)

    async def model_infer(self, body: bytes, context: CallContext, method: str = "ModelInfer") -> bytes:
        """Answer ModelInfer, or one request of another `method`, which metrics name."""
        with self._meter.request(method, context.deadline) as measured:
            spec, request = parse_infer_request(body)
            measured.model = spec.name
            result = await self._inferring.infer(spec, request, measured, context.deadline, context.priority)
            return encode_infer_response(result)
