"""Guard: asks one rule about every request before its message is decoded. All routes of all protocols pass it once.

A new protocol needs nothing here: `app.py` wraps the finished method table and the finished REST application.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from tpuserve_server.frontends.exchange import failure_response, raw_path
from tpuserve_server.frontends.http.response import Headers, error_body, send_response
from tpuserve_server.frontends.rest import RestApp
from tpuserve_server.frontends.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is known of a request before its message is decoded.

    `path` is gRPC's full method path, or HTTP's path with the percent signs resolved and in the client's case.
    `headers` are HTTP's headers or gRPC's metadata: names in lower case, values of one name joined by commas.
    `model` is None where the path names no model; a gRPC message may still name one.
    """

    protocol: Literal["grpc", "rest"]
    method: str
    path: str
    headers: Mapping[str, str]
    model: str | None = None


class Rule(Protocol):
    """Decides who may do what. Runs on the event loop of the host."""

    async def check(self, attempt: Attempt) -> None:
        """Return to let the request pass.

        Raises:
            Unauthenticated: the credentials are missing or not valid.
            PermissionDenied: the caller may not do this.
        """
        ...


class AllowAll:
    """The rule that lets every request pass. The guard leaves out what would ask it."""

    async def check(self, attempt: Attempt) -> None:
        """Return."""


ALLOW_ALL: Final = AllowAll()


class Guard:
    """Puts a rule before every method and every path."""

    def __init__(self, rule: Rule) -> None:
        """Ask `rule`, once for each request."""
        self._rule = rule

    def wrap_table(self, table: RpcTable) -> RpcTable:
        """Each method behind the rule; `table` itself where the rule lets everything pass."""
        if isinstance(self._rule, AllowAll):
            return table
        return {path: _guarded_method(self._rule, path, method) for path, method in table.items()}

    def wrap_rest(self, app: RestApp) -> "ASGIApp":
        """The application behind the rule; `app` itself where the rule lets everything pass."""
        return app if isinstance(self._rule, AllowAll) else _GuardedRest(self._rule, app)


def _guarded_method(rule: Rule, path: str, method: UnaryMethod | StreamMethod) -> UnaryMethod | StreamMethod:
    return (
        _guarded_unary(rule, path, method) if isinstance(method, UnaryMethod) else _guarded_stream(rule, path, method)
    )


def _guarded_unary(rule: Rule, path: str, method: UnaryMethod) -> UnaryMethod:
    async def handle(body: bytes, context: CallContext) -> bytes:
        await rule.check(Attempt("grpc", "POST", path, context.metadata))
        return await method.handle(body, context)

    return UnaryMethod(handle)


def _guarded_stream(rule: Rule, path: str, method: StreamMethod) -> StreamMethod:
    async def handle(requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        await rule.check(Attempt("grpc", "POST", path, context.metadata))
        messages = method.handle(requests, context)
        try:
            async for message in messages:
                yield message
        finally:
            # An iterator that is no generator has nothing to close.
            if (close := getattr(messages, "aclose", None)) is not None:
                await close()

    return StreamMethod(handle)


class _GuardedRest:
    """The REST application behind a rule, which answers a refusal in the form of the path's protocol."""

    def __init__(self, rule: Rule, app: RestApp) -> None:
        self._rule = rule
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """ASGI. Hosts send `http` scopes; no other one reaches the application."""
        protocol = self._app.find_protocol(scope["path"])
        model = None if protocol is None else protocol.find_model(scope["method"], raw_path(scope))
        try:
            await self._rule.check(Attempt("rest", scope["method"], scope["path"], _headers(scope), model))
        except Exception as error:
            # This is the last handler of the request: whatever failed, answer the client.
            form = error_body if protocol is None else protocol.error_body
            more_headers: Headers = () if protocol is None else protocol.headers
            await send_response(send, failure_response(error, scope, form), more_headers)
        else:
            await self._app(scope, receive, send)


def _headers(scope: "Scope") -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers
