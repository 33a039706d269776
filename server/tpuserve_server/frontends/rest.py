"""The REST side as one FastAPI application: /v1/ goes to the plain application beside it, the rest is FastAPI's."""

import logging
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.service import InferenceService
from tpuserve_server.frontends.edge import Edge
from tpuserve_server.frontends.tf_rest.openapi import V1_COMPONENTS, V1_PATHS
from tpuserve_server.frontends.tf_rest.v1 import V1, RestOptions
from tpuserve_server.request_log.request_logs import RequestLogs

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

__all__ = ["RestOptions", "rest_app"]

_log = logging.getLogger(__name__)


def rest_app(
    service: InferenceService,
    metrics: Metrics,
    clock: Clock,
    render_metrics: Callable[[], tuple[bytes, str]],
    options: RestOptions,
    *,
    logs: RequestLogs | None = None,
) -> FastAPI:
    """The application. `render_metrics` gives /metrics its body and content type; it is called on a worker thread."""
    app = _RestApp(V1(service, Edge(service, metrics, clock, "rest"), clock, options, logs))

    @app.get("/healthz", tags=["Operations"], summary="Is the process alive?")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", tags=["Operations"], summary="Would a prediction be answered now?", responses={503: {}})
    async def readyz() -> JSONResponse:
        reason = service.why_not_ready()
        return JSONResponse({"ready": not reason, "reason": reason}, status_code=503 if reason else 200)

    @app.get("/metrics", tags=["Operations"], summary="Metrics in Prometheus' text format", response_class=Response)
    def metrics_page() -> Response:
        body, content_type = render_metrics()
        return Response(body, headers={"content-type": content_type})

    if options.metrics_path not in (None, "/metrics"):
        app.get(options.metrics_path, include_in_schema=False, response_class=Response)(metrics_page)

    return app


class _RestApp(FastAPI):
    """FastAPI with a short cut: requests under /v1/ never see its middleware and router."""

    def __init__(self, v1: V1) -> None:
        super().__init__(
            title="tpuserve",
            version=version("tpuserve-server"),
            summary="TensorFlow Serving's REST API, and a few operations.",
            # A redirect would name the host and the scheme that a proxy spoke to, and has no JSON form.
            redirect_slashes=False,
            exception_handlers={HTTPException: _http_error, Exception: _unexpected_error},
        )
        self._v1 = v1

    def __call__(  # a coroutine either way, and one frame less on the hot one
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "Coroutine[Any, Any, None]":
        if scope["type"] == "http" and scope["path"][:4].lower() == "/v1/":
            return self._v1(scope, receive, send)
        return super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """FastAPI's own document with /v1/ added, which it has no routes for."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["paths"] = {**V1_PATHS, **document["paths"]}
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(V1_COMPONENTS)
        return self.openapi_schema or {}


async def _http_error(request: "Request", error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, status_code=error.status_code, headers=error.headers)


async def _unexpected_error(request: "Request", error: Exception) -> JSONResponse:
    # Starlette raises it again once this is sent, and the server logs it then.
    return JSONResponse({"error": "Internal error"}, status_code=500)
