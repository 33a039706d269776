"""Guard: checks every request against one rule before its message is decoded. Every route passes it exactly once.

A new protocol needs no change here: `app.py` wraps the finished method table and the finished REST application.
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
    """The facts about a request that are known before its message is decoded.

    `path` is gRPC's full method path, or HTTP's percent-decoded path in the client's case.
    `headers` are HTTP's headers or gRPC's metadata: names in lower case, values of one name joined by commas.
    `model` is None if the path names no model; a gRPC message may still name one.
    """

    protocol: Literal["grpc", "rest"]
    method: str
    path: str
    headers: Mapping[str, str]
    model: str | None = None


class Rule(Protocol):
    """Decides whether a client may send a request. Runs on the event loop of the host."""

    async def check(self, attempt: Attempt) -> None:
        """Allow the request by returning.

        Raises:
            Unauthenticated: the credentials are missing or invalid.
            PermissionDenied: the client may not send this request.
        """
        ...


class AllowAll:
    """The rule that allows every request. The guard adds no check for it."""

    async def check(self, attempt: Attempt) -> None:
        """Allow the request."""


ALLOW_ALL: Final = AllowAll()


class Guard:
    """Wraps every method and every path with a rule."""

    def __init__(self, rule: Rule) -> None:
        """Check each request once against `rule`."""
        self._rule = rule

    def wrap_table(self, table: RpcTable) -> RpcTable:
        """Return a table whose methods check the rule first, or `table` itself if the rule allows every request."""
        if isinstance(self._rule, AllowAll):
            return table
        return {path: _guarded_method(self._rule, path, method) for path, method in table.items()}

    def wrap_rest(self, app: RestApp) -> "ASGIApp":
        """Return an application that checks the rule first, or `app` itself if the rule allows every request."""
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
            # Only generators have `aclose`.
            if (close := getattr(messages, "aclose", None)) is not None:
                await close()

    return StreamMethod(handle)


class _GuardedRest:
    """The REST application behind a rule. It sends a refusal in the error form of the path's protocol."""

    def __init__(self, rule: Rule, app: RestApp) -> None:
        self._rule = rule
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Check the rule, then run the application. Hosts send only `http` scopes."""
        protocol = self._app.find_protocol(scope["path"])
        model = None if protocol is None else protocol.find_model(scope["method"], raw_path(scope))
        try:
            await self._rule.check(Attempt("rest", scope["method"], scope["path"], _headers(scope), model))
        except Exception as error:
            # The last handler of the request: the client gets a response to every error.
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
