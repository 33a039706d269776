"""REST as one application: requests under a protocol's prefix go to its exchange, all others to FastAPI."""

import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from tpuserve_server.access.access import OPEN, READ_SERVER
from tpuserve_server.access.caller import shown_reason
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.requests.request_record import NO_OBSERVERS, Observers
from tpuserve_server.protocols.console.console import Console, lead_to_page
from tpuserve_server.protocols.control import Control
from tpuserve_server.protocols.exchange import (
    Exchange,
    RestProtocol,
    RouteFacts,
    raw_path,
)
from tpuserve_server.protocols.exchanges import Exchanges
from tpuserve_server.protocols.http.content import DEFLATE, GZIP, Coding, accepted_coding, compress_parts
from tpuserve_server.protocols.http.headers import LEAST_WEIGHT, parse_accept, prefers_html
from tpuserve_server.protocols.http.response import SafeResponses
from tpuserve_server.protocols.oip.administration import Administration
from tpuserve_server.protocols.oip_rest.openapi import V2_COMPONENTS, V2_PATHS
from tpuserve_server.protocols.oip_rest.openapi_administration import ADMINISTRATION_COMPONENTS, ADMINISTRATION_PATHS
from tpuserve_server.protocols.oip_rest.v2 import V2, VertexInference
from tpuserve_server.protocols.operations import Operations
from tpuserve_server.protocols.options import ControlOptions, ExchangeOptions
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.shared_pages import Page, Render, SharedPages
from tpuserve_server.protocols.status import PathNotFound, status_of
from tpuserve_server.protocols.tf_rest.openapi import V1_COMPONENTS, V1_PATHS
from tpuserve_server.protocols.tf_rest.v1 import V1

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


_OPEN_METRICS: Final = "application/openmetrics-text"
# Versions that a client may name. A client that names none takes any.
_VERSIONS: Final = ("", "0.0.1", "1.0.0")
_TEXT: Final = ("text/plain", "text/*", "*/*")


class Scrapes:
    """Renders the pages. A page of many models takes long, so all clients that wait share it."""

    def __init__(self, render: Render, render_open_metrics: Render | None) -> None:
        """Render the text format, and OpenMetrics unless `render_open_metrics` is None."""
        self._has_open_metrics = render_open_metrics is not None
        # Clients share a page only if they get the same function.
        self._renders = {
            (is_open, coding): partial(_render_compressed, one, coding) if coding else one
            for is_open, one in ((False, render), (True, render_open_metrics or render))
            for coding in (None, GZIP, DEFLATE)
        }
        self._pages = SharedPages()

    async def page(self, accept: str = "", coding: Coding | None = None) -> Page:
        """Return the page for a client with this Accept header, when its first part is there.

        A page of a thousand models is 30 times as small when it is compressed.
        """
        is_open = self._has_open_metrics and prefers_open_metrics(accept)
        return await self._pages.open(self._renders[is_open, coding])


def _render_compressed(render: Render, coding: Coding) -> tuple[Iterator[bytes], str]:
    parts, content_type = render()
    return compress_parts(parts, coding), content_type


def prefers_open_metrics(accept: str) -> bool:
    """Return whether a client with this Accept header takes OpenMetrics 1.0.0, and no other format rather."""
    ranges = parse_accept(accept)
    text = max((each.weight for each in ranges if each.media_type in _TEXT), default=0.0)
    own = [each.weight for each in ranges if each.media_type == _OPEN_METRICS and each.version in _VERSIONS]
    return max(own, default=0.0) >= max(text, LEAST_WEIGHT)


@dataclass(frozen=True, slots=True)
class RestOptions(ExchangeOptions):
    """Limits of one exchange, and options of the protocols and the operations."""

    # enable_signature_method_name_check
    check_method_names: bool = False
    # enable_kserve_v1_readiness
    reports_readiness: bool = False
    # Path from a MonitoringConfig, served in addition to /metrics. Outside every protocol's prefix.
    metrics_path: str | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A protocol with its path prefix, in lower case, and its part of the OpenAPI document."""

    prefix: str
    protocol: RestProtocol
    paths: Mapping[str, object]
    components: Mapping[str, object]


def rest_app(
    service: InferenceService,
    metrics: Metrics,
    clock: Clock,
    render_metrics: Render,
    options: RestOptions,
    *,
    render_open_metrics: Render | None = None,
    logs: RequestLogs | None = None,
    administration: Administration | None = None,
    budgets: Budgets | None = None,
    control: Control | None = None,
    observers: Observers = NO_OBSERVERS,
    console: Console | None = None,
    meter: RequestMeter | None = None,
) -> "RestApp":
    """Build the application. Without `budgets` and `control` it has its own, with the default options.

    Without `administration` the Open Inference Protocol has only health, metadata and inference.
    `render_metrics` returns the parts and the content type of /metrics, and `render_open_metrics` those for clients
    that prefer OpenMetrics. A worker thread calls them and reads the parts.
    `observers` see every request at its end. A caller that measures requests itself, too, passes its `meter`. Without
    `console` the paths under /console and /debug are unknown.
    """
    meter = meter or RequestMeter(service, metrics, clock, "rest", observers)
    if budgets is None:
        budgets = Budgets.of(BudgetOptions(), options.max_body_bytes, clock)
    v2 = V2(service, logs, meter, budgets, control or Control(ControlOptions()), administration)
    v1 = V1(
        service,
        logs,
        meter,
        check_method_names=options.check_method_names,
        reports_readiness=options.reports_readiness,
        max_repeated_bytes=options.max_body_bytes,
        budgets=budgets,
        inference=VertexInference(v2),
    )
    # A new protocol adds a directory and a line here.
    mounts = (
        Mount("/v1/", v1, V1_PATHS, V1_COMPONENTS),
        _v2_mount(v2, is_administered=administration is not None),
    )
    app = RestApp(mounts, meter, clock, options, budgets.receiving)

    _add_probes(app.operations, service)
    _add_metrics(app.operations, Scrapes(render_metrics, render_open_metrics), options.metrics_path)
    if options.metrics_path != "/":
        root = Route("/", _Root(service, has_console=console is not None), include_in_schema=False)
        app.operations.add_route(root, OPEN)
    if console is not None:
        console.add_routes(app.operations)
    return app


def _add_probes(operations: Operations, service: InferenceService) -> None:
    async def healthz() -> JSONResponse:
        return _liveness(service)

    async def readyz() -> JSONResponse:
        reason = shown_reason(service.why_not_ready())
        return JSONResponse({"ready": not reason, "reason": reason}, status_code=503 if reason else 200)

    add = partial(operations.add, access=OPEN, tags=["Operations"], responses={503: {}})
    add("/healthz", healthz, summary="Liveness of the process")
    add("/readyz", readyz, summary="Readiness of the server for predictions")


def _liveness(service: InferenceService, about: Mapping[str, object] = MappingProxyType({})) -> JSONResponse:
    if reason := service.why_not_live():
        return JSONResponse({"status": "not alive", "reason": shown_reason(reason), **about}, status_code=503)
    return JSONResponse({"status": "alive", **about})


# Paths for a person who calls the server without one. The version is for clients that may read the server's metadata.
_PATHS: Final = {"readiness": "/readyz", "metrics": "/metrics", "api": "/openapi.json"}
_CONSOLE_PATHS: Final = {"console": "/console", "server_status": "/debug/status"}


class _Root:
    """Answers `/`: with the console to browsers, and to other clients with the liveness of the process and its paths.

    KServe's v1 clients ask here for it (kserve, inference_client.py, is_server_live), and so do load balancers without
    a configured health check. Readiness here would make KServe's clients report a server that loads as dead.
    """

    def __init__(self, service: InferenceService, *, has_console: bool) -> None:
        self._service = service
        self._has_console = has_console

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request with any method. Raises HTTPException for other methods than GET."""
        if scope["method"] != "GET":
            unknown = PathNotFound()
            raise HTTPException(status_of(unknown), unknown.message)
        accept = ",".join(Request(scope).headers.getlist("accept"))
        paths = {**_PATHS, **(_CONSOLE_PATHS if self._has_console else {})}
        about = {"server": "tpuserve", "paths": paths}
        response = lead_to_page() if self._has_console and prefers_html(accept) else _liveness(self._service, about)
        await response(scope, receive, send)


def _add_metrics(operations: Operations, scrapes: Scrapes, upstream_path: str | None) -> None:
    async def metrics_page(request: Request) -> Response:
        return await _answer_scrape(request, scrapes, ",".join(request.headers.getlist("accept")))

    async def upstream_metrics_page(request: Request) -> Response:
        # TensorFlow Serving has only the text format.
        return await _answer_scrape(request, scrapes, "")

    add = partial(operations.add, access=READ_SERVER, response_class=Response)
    add(
        "/metrics",
        metrics_page,
        tags=["Operations"],
        summary="Metrics in Prometheus' text format, or as OpenMetrics by the Accept header",
    )
    if upstream_path not in (None, "/metrics"):
        add(upstream_path, upstream_metrics_page, include_in_schema=False)


async def _answer_scrape(request: Request, scrapes: Scrapes, accept: str) -> Response:
    coding = accepted_coding(request.scope)
    page = await scrapes.page(accept, coding)
    # The content type is not `media_type`, to which Starlette would add a charset.
    headers = {"content-type": page.content_type, "vary": "accept, accept-encoding"}
    if coding is not None:
        headers["content-encoding"] = coding.name
    return StreamingResponse(page.parts(), headers=headers)


def _v2_mount(protocol: V2, *, is_administered: bool) -> Mount:
    if not is_administered:
        return Mount("/v2", protocol, V2_PATHS, V2_COMPONENTS)
    paths, components = {**V2_PATHS, **ADMINISTRATION_PATHS}, {**V2_COMPONENTS, **ADMINISTRATION_COMPONENTS}
    return Mount("/v2", protocol, paths, components)


class RestApp(FastAPI):
    """FastAPI with a shortcut: requests under a protocol's prefix bypass its middleware and router."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        meter: RequestMeter,
        clock: Clock,
        options: ExchangeOptions,
        receiving: ReceivingBudget,
    ) -> None:
        """Create an exchange for each protocol."""
        super().__init__(
            title="tpuserve",
            version=version("tpuserve-server"),
            summary="TensorFlow Serving's REST API, the Open Inference Protocol, and a few operations.",
            # Their pages load scripts from another server, which could then act as the console of this one.
            docs_url=None,
            redoc_url=None,
            # A redirect would name the host and scheme behind a proxy, and has no JSON form.
            redirect_slashes=False,
            exception_handlers={HTTPException: _http_error, Exception: _unexpected_error},
        )
        self._mounts = mounts
        self.operations = Operations(self)
        self._safe_operations = SafeResponses(super().__call__)
        self.exchanges = Exchanges(
            (mount.prefix, Exchange(mount.protocol, meter, clock, options, receiving)) for mount in mounts
        )

    def __call__(  # all branches return a coroutine; `async def` would add a frame to the hot path
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "Coroutine[Any, Any, None]":
        if scope["type"] == "http":
            if scope["method"] == "HEAD":
                return self._answer_head(scope, receive, send)
            exchange = self.exchanges.find(scope["path"])
            if exchange is not None:
                return exchange(scope, receive, send)
        return self._safe_operations(scope, receive, send)

    def facts_of(self, scope: "Scope") -> tuple[RouteFacts, RestProtocol | None]:
        """Return the facts about a request, and its protocol, or None for the operations' paths and unknown paths."""
        exchange = self.exchanges.find(scope["path"])
        if exchange is None:
            return self.operations.find(scope), None
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        return exchange.protocol.facts_of(method, raw_path(scope)), exchange.protocol

    async def _answer_head(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer as to GET (RFC 9110, 9.3.2), without the body."""
        is_complete = False

        async def send_head(message: "Message") -> None:
            nonlocal is_complete
            if message["type"] != "http.response.body":
                await send(message)
                return
            if is_complete:
                await send({"type": message["type"]})
                raise _HeadSent
            is_complete = True
            # A stream has no length, which the host learns from the field.
            await send({"type": message["type"], "more_body": message.get("more_body", False)})

        # Starlette reports the error of a stream as a disconnect.
        with contextlib.suppress(_HeadSent, ClientDisconnect):
            await self({**scope, "method": "GET"}, receive, send_head)

    def openapi(self) -> dict[str, Any]:
        """Return FastAPI's document with the protocols' paths, for which FastAPI has no routes."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for mount in self._mounts:
                document["paths"] = {**mount.paths, **document["paths"]}
                schemas.update(mount.components)
        return self.openapi_schema or {}


class _HeadSent(OSError):
    """Ends a stream after its headers, like a disconnect of the client (ASGI, 2.4)."""


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, status_code=error.status_code, headers=error.headers)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    # Starlette raises the error again after this response, and the server logs it then.
    return JSONResponse({"error": "Internal error"}, status_code=500)
