"""Guard: checks every request against one rule before a host reads its message. Every route passes it exactly once.

A new protocol needs no change here: `startup/app.py` wraps the finished method table and the finished REST application.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from tpuserve_server.access.access import Access
from tpuserve_server.access.authenticator import Authenticator
from tpuserve_server.access.caller import set_caller
from tpuserve_server.access.credentials import CERTIFICATE_KEY, FindCertificate, no_certificate
from tpuserve_server.core.terms.errors import Unauthenticated
from tpuserve_server.observe.requests.trace_context import echo_request_id
from tpuserve_server.protocols.exchange import RouteFacts, encoded, failure_response
from tpuserve_server.protocols.http.headers import find_request_id
from tpuserve_server.protocols.http.response import BASIC, error_body, send_response, with_challenge
from tpuserve_server.protocols.raw_headers import RawHeaders
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import RestApp
from tpuserve_server.protocols.rpc import (
    CallContext,
    GuardedMethod,
    GuardedStream,
    GuardedTable,
    GuardedUnary,
    RpcTable,
    StreamMethod,
    Trailers,
    UnaryMethod,
    admit_every_call,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


_Handler = TypeVar("_Handler")


class Attempt(NamedTuple):
    """The facts about a request that are known before its message is read.

    `path` is gRPC's full method path, or HTTP's percent-decoded path in the client's case.
    `headers` are HTTP's headers or gRPC's metadata: names in lower case, values of one name joined by commas.
    `access` is what the request needs of its client.
    `model` is None if the path names no model; a gRPC message may still name one.
    `find_certificate` returns the names of the client's certificate.
    """

    protocol: Literal["grpc", "rest"]
    method: str
    path: str
    headers: Mapping[str, str]
    access: Access
    model: str | None = None
    find_certificate: FindCertificate = no_certificate


class Rule(Protocol):
    """Decides whether a client may send a request. Runs on the event loop of the host."""

    async def check(self, attempt: Attempt) -> None:
        """Allow the request by returning. The request's message has not arrived, and must not be waited for.

        Raises:
            Unauthenticated: the credentials are missing or invalid.
            PermissionDenied: the client may not send this request.
        """
        ...


class AllOf:
    """The rule that allows the requests that each of several rules allows. Checks them in order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Check `rules`."""
        self._rules = rules

    async def check(self, attempt: Attempt) -> None:
        """Allow the request by returning. Raises the error of the first rule that refuses it."""
        for rule in self._rules:
            await rule.check(attempt)


class Guard:
    """Wraps every method and every path with a rule."""

    def __init__(self, rule: Rule | None, rpc_meter: RequestMeter, rest_meter: RequestMeter) -> None:
        """Check each request once against `rule`; None allows all. The meters count the requests that it refuses."""
        self._rule = rule
        self._rpc_meter = rpc_meter
        self._rest_meter = rest_meter

    def wrap_table(self, table: RpcTable) -> GuardedTable:
        """Return a table that admits a call only if the rule allows it, before a host reads the call's message."""
        if self._rule is None:
            return admit_every_call(table)
        return {path: self._guarded(self._rule, path, method) for path, method in table.items()}

    def wrap_rest(self, app: RestApp) -> "ASGIApp":
        """Return an application that checks the rule first, or `app` itself without a rule."""
        return app if self._rule is None else _GuardedRest(self._rule, app, self._rest_meter)

    def _guarded(self, rule: Rule, path: str, method: UnaryMethod | StreamMethod) -> GuardedMethod:
        access, facts = method.access, (method.max_message_bytes, method.find_contents)
        if isinstance(method, UnaryMethod):
            return GuardedUnary(self._admitting(rule, path, access, method.handle), access, *facts)
        return GuardedStream(self._admitting(rule, path, access, method.handle), access, *facts)

    def _admitting(
        self, rule: Rule, path: str, access: Access, handler: _Handler
    ) -> Callable[[CallContext], Awaitable[_Handler]]:
        """Return a function that checks the rule of one gRPC method and returns `handler`.

        The meter counts the calls that the rule refuses; the method counts all others.
        """

        async def admit(context: CallContext) -> _Handler:
            try:
                await rule.check(
                    Attempt("grpc", "POST", path, context.metadata, access, None, context.find_certificate)
                )
            except Exception:
                with self._rpc_meter.call(path.rpartition("/")[2], context):
                    raise
            return handler

        return admit


class _GuardedRest:
    """The REST application behind a rule. It sends a refusal in the error form of the path's protocol."""

    def __init__(self, rule: Rule, app: RestApp, meter: RequestMeter) -> None:
        self._rule = rule
        self._app = app
        self._meter = meter

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Check the rule, then run the application. Hosts send only `http` scopes."""
        facts, protocol = self._app.facts_of(scope)
        try:
            await self._rule.check(
                Attempt(
                    "rest",
                    scope["method"],
                    scope["path"],
                    RawHeaders(scope["headers"]),
                    facts.access,
                    facts.model,
                    scope.get(CERTIFICATE_KEY, no_certificate),
                )
            )
        except Exception as error:
            # The last handler of the request: the client gets a response to every error.
            form = error_body if protocol is None else protocol.error_body
            trailers: Trailers = []
            self._count(error, facts, scope, trailers)
            response = failure_response(error, scope, form, trailers)
            if isinstance(error, Unauthenticated) and facts.is_page:
                response = with_challenge(response, BASIC)
            await send_response(send, response, encoded(trailers))
        else:
            await self._app(scope, receive, send)

    def _count(self, error: Exception, facts: RouteFacts, scope: "Scope", trailers: Trailers) -> None:
        """Count a refused request, and give its response the client's request id."""
        measured = self._meter.request(facts.method)
        measured.model = facts.model or ""
        measured.request_id = find_request_id(scope)
        measured.trailers = trailers
        echo_request_id(measured.request_id, trailers)
        with contextlib.suppress(type(error)), measured:
            raise error


class AccessRule:
    """Identifies the client of each request, and checks that it has the role that the request needs."""

    def __init__(self, authenticator: Authenticator) -> None:
        """Identify clients with `authenticator`."""
        self.authenticator = authenticator

    async def check(self, attempt: Attempt) -> None:
        """Set the caller of the request. Later parts check the models and the address of the client.

        Raises:
            Unauthenticated: the credentials are missing or invalid.
            PermissionDenied: the client lacks the role, or may use only some models.
        """
        authenticator = self.authenticator
        try:
            identity = authenticator.identify(attempt.headers, attempt.find_certificate)
        except Unauthenticated:
            # The context may be that of an earlier request of the connection. The log must not show its client.
            set_caller(authenticator.anonymous)
            if attempt.access.roles is not None:
                raise
            # An expired credential must not make a probe fail.
            identity = authenticator.anonymous
        # The refusal of a known client is logged with its name.
        set_caller(identity)
        if not identity.may(attempt.access):
            identity.require(attempt.access, attempt.path)
        # Before the body is read. The service checks the names in messages.
        if identity.models is not None and attempt.model is not None:
            identity.require_model(attempt.model)


def combined_rule(authenticator: Authenticator | None, other: Rule | None) -> Rule | None:
    """Return the rule that identifies clients first, and then checks `other`. None stands for no rule."""
    rules = [*([] if authenticator is None else [AccessRule(authenticator)]), *([] if other is None else [other])]
    return AllOf(rules) if len(rules) > 1 else next(iter(rules), None)
