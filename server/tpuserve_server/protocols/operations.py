"""Operations: the routes outside the protocols, such as health, metrics and the console, in a FastAPI application."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.routing import BaseRoute, Match, Route

from tpuserve_server.access.access import CONTROL_SERVER, READ, Access
from tpuserve_server.protocols.exchange import UNKNOWN_ROUTE, RouteFacts

if TYPE_CHECKING:
    from starlette.types import Scope


# FastAPI's own routes. They describe the interface, and no model.
_DOCUMENTS = ("/openapi.json",)


class Operations:
    """Adds routes, and finds the route of a request. Add each route here, not in FastAPI: others are closed."""

    def __init__(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        self._app = app
        self._facts = {path: RouteFacts(READ, path, is_page=True) for path in _DOCUMENTS}

    def add(
        self,
        path: str,
        endpoint: Callable[..., Any],
        access: Access,
        *,
        is_page: bool = False,
        **options: Any,  # noqa: ANN401 - FastAPI's options of a route
    ) -> None:
        """Add a route that needs `access` of its client. `options` are FastAPI's."""
        self._facts[path] = RouteFacts(access, path, is_page=is_page)
        self._app.add_api_route(path, endpoint, **options)

    def add_route(self, route: Route, access: Access, *, is_page: bool = False) -> None:
        """Add a route of Starlette, which has no part in the OpenAPI document."""
        self._facts[route.path] = RouteFacts(access, route.path, is_page=is_page)
        self._app.router.routes.append(route)

    def find(self, scope: "Scope") -> RouteFacts:
        """Return the facts about a request. A route that was not added here needs every permission."""
        route = self._find_route(scope)
        if route is None:
            return UNKNOWN_ROUTE
        path = getattr(route, "path", "")
        return self._facts.get(path) or RouteFacts(CONTROL_SERVER, path)

    def _find_route(self, scope: "Scope") -> BaseRoute | None:
        """Return the route that answers a request, as Starlette chooses it, or None."""
        partial = None
        for route in self._app.router.routes:
            match, _ = route.matches(scope)
            if match is Match.FULL:
                return route
            if match is Match.PARTIAL and partial is None:
                partial = route
        return partial
