"""Entrance: the path / of the REST port, which leads browsers to the console."""

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse

from tpuserve_server.frontends.console.browser_headers import PAGE_HEADERS
from tpuserve_server.frontends.http.accept import prefers_html
from tpuserve_server.frontends.http.errors import PathNotFound, status_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Entrance:
    """Leads clients that prefer HTML to the console. All others get TensorFlow Serving's answer: no such path."""

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request with any method. Raises HTTPException for clients that are no browsers."""
        accept = ",".join(Request(scope).headers.getlist("accept"))
        if scope["method"] != "GET" or not prefers_html(accept):
            unknown = PathNotFound()
            raise HTTPException(status_of(unknown), unknown.message)
        # A relative address is right behind a proxy that serves this one under a prefix.
        await RedirectResponse("console", headers={**PAGE_HEADERS, "vary": "accept"})(scope, receive, send)
