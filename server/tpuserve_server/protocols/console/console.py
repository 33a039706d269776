"""Console: the routes under /console and /debug."""

import asyncio
import hashlib
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tpuserve_server.access.access import READ_SERVER
from tpuserve_server.core.models.loader import VersionDetails
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound, ServingError
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.requests.slow_requests import MOST_KEPT
from tpuserve_server.protocols.console.documents import describe_slow, describe_status
from tpuserve_server.protocols.console.event_feed import EventFeed, Subscription
from tpuserve_server.protocols.console.report_files import OpenReport, open_report
from tpuserve_server.protocols.console.sources import ConsoleSources
from tpuserve_server.protocols.control import Control, check_browser
from tpuserve_server.protocols.operations import Operations
from tpuserve_server.protocols.shared_pages import SharedPages
from tpuserve_server.protocols.status import ClientGone, PathNotFound, status_of

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


_EVERYWHERE: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}
# Data: neither a page nor anything that a browser keeps.
_DATA_HEADERS: Final[Mapping[str, str]] = {
    **_EVERYWHERE,
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
# The page and its files. No script or style may be inline, and none may come from elsewhere.
_PAGE_HEADERS: Final[Mapping[str, str]] = {
    **_EVERYWHERE,
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}
# Reports are written by the author of a version. Their scripts run in a separate origin, without network.
_REPORT_HEADERS: Final[Mapping[str, str]] = {
    **_EVERYWHERE,
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "sandbox allow-scripts allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


# EventStream: a response of server-sent events (WHATWG HTML, 9.2) from one subscription.

# The browser connects again after a second. The comment shows at once that the stream is open.
_FIRST: Final = b": tpuserve\nretry: 1000\n\n"
# The server keeps what a client does not read. The browser continues with a new stream after this one.
_MOST_BYTES: Final = 1 << 20
# A client that reads nothing for so long loses its place.
_SEND_TIMEOUT_S: Final = 30.0
# The same at the end of the stream: a drain waits for it.
_LAST_TIMEOUT_S: Final = 0.5


class EventStream(Response):
    """Sends the events until the subscription ends, the client disconnects, or the stream is long."""

    def __init__(self, subscription: Subscription, headers: Mapping[str, str]) -> None:
        """Take over `subscription`, which the response closes at its end."""
        super().__init__(headers={**headers, "content-type": "text/event-stream"})
        # The length is unknown.
        del self.headers["content-length"]
        self._subscription = subscription

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send the response. Raises ClientGone for a client that does not read."""
        watching = asyncio.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_events(send)
            await self._send_in_time(send, {"type": "http.response.body", "body": b""})
        except OSError:
            # The client has disconnected (ASGI, 2.4).
            return
        finally:
            watching.cancel()
            self._subscription.close()

    async def _watch(self, receive: "Receive") -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._subscription.end()

    async def _send_events(self, send: "Send") -> None:
        sent_bytes, events = 0, _FIRST
        while events:
            await self._send_in_time(send, {"type": "http.response.body", "body": events, "more_body": True})
            sent_bytes += len(events)
            events = await self._subscription.next() if sent_bytes < _MOST_BYTES else b""

    async def _send_in_time(self, send: "Send", message: "Message") -> None:
        """Send a message. Raises ClientGone if the client does not read it in time."""
        subscription, loop = self._subscription, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LAST_TIMEOUT_S if subscription.has_ended else _SEND_TIMEOUT_S) as limit:
                subscription.on_end = lambda: limit.reschedule(loop.time() + _LAST_TIMEOUT_S)
                await send(message)
        except TimeoutError:
            raise ClientGone from None
        finally:
            subscription.on_end = None


# Every file of the page has one of these.
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
PAGE: Final = "index.html"


class PageFile(NamedTuple):
    """One file. `etag` changes with its content."""

    content: bytes
    content_type: str
    etag: str


class PageFiles:
    """The files by name. A name that is not in the package is unknown, so a request cannot reach another file."""

    def __init__(self) -> None:
        """Read the files of the package. Blocks."""
        folder = files("tpuserve_server.protocols.console").joinpath("page")
        self._by_name = {
            entry.name: _read(entry.read_bytes(), content_type)
            for entry in folder.iterdir()
            for suffix, content_type in _TYPES.items()
            if entry.name.endswith(suffix)
        }

    def find(self, name: str) -> PageFile | None:
        """Return a file, or None for an unknown name."""
        return self._by_name.get(name)


def _read(content: bytes, content_type: str) -> PageFile:
    return PageFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


# The memory of a response.
_PIECE_BYTES: Final = 1 << 18


class ReportStream(Response):
    """Sends an open report, and closes it."""

    def __init__(self, report: OpenReport, headers: Mapping[str, str]) -> None:
        """Take over `report`."""
        length = {"content-length": str(report.size_bytes), "content-type": "text/html; charset=utf-8"}
        super().__init__(headers={**headers, **length})
        self._report = report

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send the response. Raises EOFError if the file has become shorter."""
        with self._report.file as file:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            left_bytes = self._report.size_bytes
            while left_bytes:
                piece = await asyncio.to_thread(file.read, min(left_bytes, _PIECE_BYTES))
                if not piece:
                    raise EOFError("A report became shorter while a client read it")
                left_bytes -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def lead_to_page() -> Response:
    """Return the response to a browser that opens the server's address."""
    # A relative address is right behind a proxy that serves this one under a prefix.
    return RedirectResponse("console", headers={**_PAGE_HEADERS, "vary": "accept"})


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
        self._status = SharedPages()
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
        page = await self._status.open(self._describe_to_controllers if may_control else self._describe_to_others)
        return _with_json(await page.body())

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
            return EventStream(self._feed.subscribe(), _DATA_HEADERS)
        except ServingError as error:
            raise _answer(error) from None

    async def page(self, request: Request) -> Response:
        """Answer with the page."""
        return await self.static(PAGE, request)

    async def page_above(self) -> Response:
        """Lead to the page: the addresses in it are relative to its own."""
        return RedirectResponse("../console", headers=_PAGE_HEADERS)

    async def static(self, name: str, request: Request) -> Response:
        """Answer with a file of the page."""
        file = self._files.find(name)
        if file is None:
            raise _answer(PathNotFound())
        headers = {**_PAGE_HEADERS, "etag": file.etag}
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
        return ReportStream(report, _REPORT_HEADERS)

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


def _status_body(sources: ConsoleSources, *, may_control: bool) -> tuple[tuple[bytes], str]:
    return (orjson.dumps(describe_status(sources, may_control=may_control)),), "application/json"


def _json(document: Mapping[str, Any]) -> Response:
    return _with_json(orjson.dumps(document))


def _with_json(body: bytes) -> Response:
    return Response(body, headers={**_DATA_HEADERS, "content-type": "application/json"})


def _answer(error: ServingError) -> HTTPException:
    """Return the HTTP error of `error`, in the form of the application."""
    return HTTPException(status_of(error), error.message)
