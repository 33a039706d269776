"""EngineCalls: the ASGI application behind the tunnel of one front-end process, as EnvoyEntry is behind Envoy."""

from typing import TYPE_CHECKING, Protocol

from tpuserve_server.core.budgets.receiving import ReceivingBudget
from tpuserve_server.core.budgets.sending import SendingBudget
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.frontends.guarded import GuardedTable
from tpuserve_server.hosts.disconnects import ConformingReceive, DisconnectWatch
from tpuserve_server.hosts.grpc.asgi import GrpcOverAsgi
from tpuserve_server.hosts.grpc.headers import is_grpc_request
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rest_calls import RestCalls

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Answering(Protocol):
    """The part of an Application that answers calls."""

    @property
    def rpc(self) -> GuardedTable: ...

    @property
    def rest(self) -> "ASGIApp": ...

    @property
    def receiving(self) -> ReceivingBudget: ...

    @property
    def sending(self) -> SendingBudget: ...

    @property
    def overload_gate(self) -> OverloadGate: ...


class EngineCalls:
    """Answers gRPC and REST with the engine's own application."""

    def __init__(
        self, application: Answering, max_message_bytes: int, in_flight: InFlight, watch: DisconnectWatch
    ) -> None:
        """Limit gRPC messages to `max_message_bytes`. `in_flight` is that of the front-end's TunnelServer."""
        self._watch = watch
        self._rpc = application.rpc
        self._rest = RestCalls(application.rest, in_flight, application.overload_gate)
        self._grpc = GrpcOverAsgi(
            application.rpc,
            max_message_bytes=max_message_bytes,
            in_flight=in_flight,
            watch=watch,
            receiving=application.receiving,
            sending=application.sending,
            gate=application.overload_gate,
        )

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer an `http` scope."""
        if is_grpc_request(scope, self._rpc):
            return await self._grpc(scope, receive, send)
        conforming = ConformingReceive(receive, self._watch)
        try:
            await self._rest(scope, conforming, send)
        finally:
            conforming.close()
        return None
