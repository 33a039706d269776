"""grpc.health.v1.Health (grpc/grpc, doc/health-checking.md): reports whether this server can answer predictions now."""

from collections.abc import AsyncIterator, Collection

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from tpuserve_server.core.change_event import ChangeEvent
from tpuserve_server.core.errors import InvalidArgument, NotFound, shown
from tpuserve_server.core.service import InferenceService
from tpuserve_server.frontends.rpc import CallContext

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
