"""tensorflow.serving.ModelService: GetModelStatus."""

from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.model_messages import decode_status_request, encode_status_response


class ModelMethods:
    """The service's methods, from bytes to bytes. They raise ServingErrors."""

    def __init__(self, service: InferenceService, meter: RequestMeter) -> None:
        """Answer from `service`."""
        self._service = service
        self._meter = meter

    async def get_model_status(self, body: bytes, context: CallContext) -> bytes:
        """Answer GetModelStatus, newest version first. Ignore a label, as upstream does."""
        with self._meter.call("GetModelStatus", context) as measured:
            spec = decode_status_request(body)
            measured.model = spec.name
            return encode_status_response(self._service.status_once_read(spec))
