"""Console: the routes under /console and /debug."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tpuserve_server.core.errors import InvalidArgument, NotFound, ServingError
from tpuserve_server.core.types import ServableId
from tpuserve_server.core.version_details import VersionDetails
from tpuserve_server.frontends.browser_origin import check_browser
from tpuserve_server.frontends.console.browser_headers import DATA_HEADERS, PAGE_HEADERS, REPORT_HEADERS
from tpuserve_server.frontends.console.entrance import Entrance
from tpuserve_server.frontends.console.event_feed import EventFeed
from tpuserve_server.frontends.console.event_stream import EventStream
from tpuserve_server.frontends.console.page_files import PAGE, PageFiles
from tpuserve_server.frontends.console.report_files import open_report
from tpuserve_server.frontends.console.report_stream import ReportStream
from tpuserve_server.frontends.console.slow_document import describe_slow
from tpuserve_server.frontends.console.sources import ConsoleSources
from tpuserve_server.frontends.console.status_document import describe_status
from tpuserve_server.frontends.control import Control
from tpuserve_server.frontends.http.errors import PathNotFound, status_of
from tpuserve_server.frontends.operations import Operations
from tpuserve_server.frontends.shared_work import SharedWork
from tpuserve_server.identity.access import READ_SERVER
from tpuserve_server.telemetry.slow_requests import MOST_KEPT

_SLOW: Final = 20
_MOST_SHOWN: Final = 100


class Console:
    """Answers the console's requests. They change nothing."""

    def __init__(self, sources: ConsoleSources, control: Control) -> None:
        """Show `sources`. `control` decides which clients see the values of flags."""
        self._sources = sources
        self._control = control
        self._feed = EventFeed(sources)
        self._files = PageFiles()
        self._status = SharedWork[bytes]()
        self._describe_to_controllers = partial(_status_body, sources, may_control=True)
        self._describe_to_others = partial(_status_body, sources, may_control=False)

    def add_routes(self, operations: Operations) -> None:
        """Add the routes to the REST application. They show all models of the server."""
        add = partial(operations.add, access=READ_SERVER, is_page=True)
        add(
            "/debug/status",
            self.status,
            tags=["Operations"],
            summary="Models, devices, budgets, build and changed flags",
        )
        add("/debug/slow", self.slow, tags=["Operations"], summary="The slowest requests of the last minutes, by stage")
        entrance = Route("/", Entrance(), include_in_schema=False)
        operations.add_route(entrance, READ_SERVER, is_page=True)
        add("/console/", self.page_above, include_in_schema=False)
        add("/console", self.page, include_in_schema=False)
        add("/console/static/{name}", self.static, include_in_schema=False)
        add("/console/events", self.events, include_in_schema=False)
        add("/console/labels/{model:path}/{version}", self.labels, include_in_schema=False)
        add("/console/reports/{model:path}/{version}/{name}", self.report, include_in_schema=False)

    async def status(self, request: Request) -> Response:
        """Answer with the status of the server."""
        # Every open console reads it again after a change of a model, and it reads the directories of all versions.
        may_control = self._control.may_control(request.scope)
        body = await self._status.result(self._describe_to_controllers if may_control else self._describe_to_others)
        return _with_json(body)

    async def slow(self, limit: str = str(_SLOW)) -> Response:
        """Answer with the slowest requests, at most `limit`."""
        most = _whole_number(limit)
        if most is None or not 1 <= most <= MOST_KEPT:
            raise _answer(InvalidArgument(f"limit must be a number from 1 to {MOST_KEPT}, got {_shown(limit)}"))
        return _json(describe_slow(self._sources.slow.slowest(self._sources.clock.monotonic_s(), most)))

    async def events(self, request: Request) -> Response:
        """Answer with a stream of events."""
        try:
            # Pages of other sites cannot read the events, but would take the places of those that can.
            check_browser(request.scope)
            return EventStream(self._feed.subscribe(), DATA_HEADERS)
        except ServingError as error:
            raise _answer(error) from None

    async def page(self, request: Request) -> Response:
        """Answer with the page."""
        return await self.static(PAGE, request)

    async def page_above(self) -> Response:
        """Lead to the page: the addresses in it are relative to its own."""
        return RedirectResponse("../console", headers=PAGE_HEADERS)

    async def static(self, name: str, request: Request) -> Response:
        """Answer with a file of the page."""
        file = self._files.find(name)
        if file is None:
            raise _answer(PathNotFound())
        headers = {**PAGE_HEADERS, "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "content-type": file.content_type})

    async def labels(self, model: str, version: str) -> Response:
        """Answer with the names of a version's classes."""
        return _json({"labels": self._details(model, version).labels})

    # On a worker thread, because it opens a file.
    def report(self, model: str, version: str, name: str) -> Response:
        """Answer with a report page of a version."""
        path = self._details(model, version).path
        report = None if path is None else open_report(path, name)
        if report is None:
            raise _answer(NotFound(f"Version {version} of model {_shown(model)} has no report {_shown(name)}"))
        return ReportStream(report, REPORT_HEADERS)

    def _details(self, model: str, version: str) -> VersionDetails:
        number = _whole_number(version)
        details = None if number is None else self._sources.service.details(ServableId(model, number))
        if details is None:
            raise _answer(NotFound(f"Model {_shown(model)} has no version {_shown(version)} that serves"))
        return details


def _whole_number(text: str) -> int | None:
    """Return the number that a client wrote in at most 19 decimal digits, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _shown(text: str) -> str:
    """Return a client's text for a message, in quotes and not too long."""
    return repr(text[:_MOST_SHOWN])


def _status_body(sources: ConsoleSources, *, may_control: bool) -> bytes:
    return orjson.dumps(describe_status(sources, may_control=may_control))


def _json(document: Mapping[str, Any]) -> Response:
    return _with_json(orjson.dumps(document))


def _with_json(body: bytes) -> Response:
    return Response(body, headers={**DATA_HEADERS, "content-type": "application/json"})


def _answer(error: ServingError) -> HTTPException:
    """Return the HTTP error of `error`, in the form of the application."""
    return HTTPException(status_of(error), error.message)
