"""tensorflow.serving.ModelService: HandleReloadConfigRequest."""

import asyncio

from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.protocols.settling import settle
from tpuserve_server.wire.model_server_config import RELOADED, decode_reload_request


class ReloadMethods:
    """The method, from bytes to bytes. It raises ServingErrors."""

    def __init__(self, service: InferenceService, models: ConfiguredModels, meter: RequestMeter, clock: Clock) -> None:
        """Change `models`, and wait for changes of `service`."""
        self._service = service
        self._models = models
        self._meter = meter
        self._clock = clock
        # Reloads run one at a time. The lock keeps waiting reloads from occupying worker threads.
        self._turn = asyncio.Lock()

    async def handle_reload_config_request(self, body: bytes, context: CallContext) -> bytes:
        """Answer HandleReloadConfigRequest when new models serve and labels are assigned, or at the client's deadline.

        An error becomes the status of the call, without a response message, as upstream does.
        """
        with self._meter.call("HandleReloadConfigRequest", context):
            # In a thread: a megabyte may hold many models.
            configs = await asyncio.to_thread(decode_reload_request, body)
            async with self._turn:
                # In a thread: it reads base paths, which may be on slow remote storage.
                transition = await asyncio.to_thread(self._models.reload, configs, body)
            await settle(transition, context.deadline, self._service, self._clock)
            return RELOADED
