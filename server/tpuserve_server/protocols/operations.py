"""Operations: the routes outside the protocols, such as health, metrics and the console, in a FastAPI application.

SharedWork: blocking work whose result all clients of such a route share.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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


_Result = TypeVar("_Result")


class SharedWork(Generic[_Result]):
    """Runs one function at a time on a worker thread. Its event loop's thread owns it.

    However many clients wait, they occupy one worker thread. Clients that ask for the same function get one result:
    that of the next run that starts after their request. It covers everything before the request.
    """

    def __init__(self) -> None:
        """Begin without work."""
        self._running = asyncio.Lock()
        self._next: dict[Callable[[], _Result], asyncio.Task[_Result]] = {}

    async def result(self, work: Callable[[], _Result]) -> _Result:
        """Wait for the result of `work`, which may block. Raises its error."""
        if work not in self._next:
            self._next[work] = asyncio.create_task(self._run(work))
        # A client that disconnects must not cancel the work of the others.
        return await asyncio.shield(self._next[work])

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        async with self._running:
            # Later clients get a later result.
            del self._next[work]
            return await asyncio.to_thread(work)
