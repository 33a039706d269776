"""tensorflow.serving.ModelService: HandleReloadConfigRequest."""

import asyncio

from tpuserve_server.core.change_event import wait_until
from tpuserve_server.core.configured_models import ConfiguredModels
from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import Unavailable
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.transition import Transition
from tpuserve_server.frontends.request_meter import RequestMeter
from tpuserve_server.frontends.rpc import CallContext
from tpuserve_server.wire.reload import RELOADED, decode_reload_request

# A reload stops waiting this long before the client's deadline, so that its response still arrives.
_FAREWELL_S = 0.2


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
        with self._meter.request("HandleReloadConfigRequest", context.deadline):
            configs = decode_reload_request(body)
            async with self._turn:
                # In a thread: it reads base paths, which may be on slow remote storage.
                transition = await asyncio.to_thread(self._models.begin, configs)
            await self._settle(transition, context.deadline)
            return RELOADED

    async def _settle(self, transition: Transition, deadline: Deadline) -> None:
        remaining_s = deadline.remaining_s(self._clock.monotonic_s()) - _FAREWELL_S
        try:
            async with asyncio.timeout(remaining_s if deadline.is_finite else None):
                await wait_until(self._service.subscribe, lambda: self._is_settled(transition))
        except TimeoutError:
            raise transition.too_late() from None

    def _is_settled(self, transition: Transition) -> bool:
        if transition.is_settled():
            return True
        if self._service.is_draining():
            # A drain waits for calls in flight, and must not wait for a load that may take minutes.
            raise Unavailable("The server is shutting down")
        return False
