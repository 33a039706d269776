"""VertexRoutes: answers the platform's routes by the main routes, in front of the guard.

The guard and the handlers see a request for the main path. An alias can thus never allow more than the main route.
"""

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tpuserve_server.access.authenticator import API_KEY, AUTHORIZATION
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.protocols.exchange import raw_path
from tpuserve_server.protocols.vertex.paths import READINESS, VertexPaths
from tpuserve_server.wire.json.predict import VERTEX_SCOPE

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import ASGIApp, Receive, Scope, Send


_CREDENTIALS = frozenset((AUTHORIZATION.encode(), API_KEY.encode()))


class VertexRoutes:
    """REST application with the platform's routes."""

    def __init__(
        self, app: "ASGIApp", paths: VertexPaths, service: InferenceService, *, needs_credentials: bool = False
    ) -> None:
        """Wrap `app`, the finished application behind its guard. It may need credentials."""
        self._needs_credentials = needs_credentials
        self._app = app
        self._service = service
        self._has_status = paths.has_status
        self._health = None if paths.health is None else paths.health.encode()
        self._predict = None if paths.predict is None else paths.predict.encode()
        self._predict_path = paths.predict_path

    def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> "Coroutine[Any, Any, None]":
        """Answer one request. Only the exact path, as the client sent it, is an alias."""
        path = raw_path(scope)
        if path == self._predict:
            scope = {**_at(scope, self._predict_path), VERTEX_SCOPE: True}
        elif path == self._health and not (self._has_status and self._wants_status(scope)):
            scope = _at(scope, READINESS)
        answer: Coroutine[Any, Any, None] = self._app(scope, receive, send)  # type: ignore[assignment]  # ASGI: awaitable
        return answer

    def _wants_status(self, scope: "Scope") -> bool:
        """Return whether a request gets the status of the model, which the route also means, and not the readiness.

        The platform's probes send no credentials, and must not fail on a server that needs some.
        """
        is_probe = self._needs_credentials and not any(name in _CREDENTIALS for name, _ in scope["headers"])
        return self._service.is_ready() and not is_probe


def _at(scope: "Scope", path: str) -> dict[str, Any]:
    return {**scope, "path": unquote(path), "raw_path": path.encode()}
