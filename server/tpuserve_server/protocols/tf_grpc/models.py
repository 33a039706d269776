"""tensorflow.serving.ModelService: GetModelStatus and HandleReloadConfigRequest."""

import asyncio

from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.protocols.settling import settle
from tpuserve_server.wire.model_messages import decode_status_request, encode_status_response
from tpuserve_server.wire.model_server_config import RELOADED, decode_reload_request


class ModelMethods:
    """The service's methods, from bytes to bytes. They raise ServingErrors."""

    def __init__(self, service: InferenceService, meter: RequestMeter, clock: Clock) -> None:
        """Answer from `service`."""
        self._service = service
        self._meter = meter
        self._clock = clock
        # Reloads run one at a time. The lock keeps waiting reloads from occupying worker threads.
        self._turn = asyncio.Lock()

    async def get_model_status(self, body: bytes, context: CallContext) -> bytes:
        """Answer GetModelStatus, newest version first. Ignore a label, as upstream does."""
        with self._meter.call("GetModelStatus", context) as measured:
            spec = decode_status_request(body)
            measured.model = spec.name
            return encode_status_response(self._service.status_once_read(spec))

    async def reload(self, models: ConfiguredModels, body: bytes, context: CallContext) -> bytes:
        """Answer HandleReloadConfigRequest when new models serve and labels are assigned, or at the client's deadline.

        An error becomes the status of the call, without a response message, as upstream does.
        """
        with self._meter.call("HandleReloadConfigRequest", context):
            # In a thread: a megabyte may hold many models.
            configs = await asyncio.to_thread(decode_reload_request, body)
            async with self._turn:
                # In a thread: it reads base paths, which may be on slow remote storage.
                transition = await asyncio.to_thread(models.reload, configs, body)
            await settle(transition, context.deadline, self._service, self._clock)
            return RELOADED
