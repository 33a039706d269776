"""REST through the proxies of Ray Serve: a request whose replica failed gets 503, and not Ray's text.

RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH of Ray's processes names `middlewares`.
"""

from typing import TYPE_CHECKING, Final

from starlette.middleware import Middleware

from tpuserve_server.protocols.http.response import error_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_JSON: Final = b"application/json"
_LOST: Final = error_body("The replica of Ray Serve that had this request failed. Send the request again")
_HEADERS: Final = [(b"content-type", _JSON), (b"content-length", str(len(_LOST)).encode())]


def middlewares() -> list[Middleware]:
    """Return the middleware of a proxy, for Ray."""
    return [Middleware(LostReplicas)]


class LostReplicas:
    """ASGI application around that of a proxy. It replaces the text with which Ray answers for a lost replica.

    A replica answers errors as JSON. If it or its node died, Ray answers 500 in plain text, with a traceback. Or it
    sends nothing, and the proxy's server answers 500. Clients retry 503.
    """

    def __init__(self, app: "ASGIApp") -> None:
        """Pass requests to `app`."""
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = is_lost = False

        async def send_on(message: "Message") -> None:
            nonlocal begun, is_lost
            if message["type"] == "http.response.start":
                is_lost = message["status"] == 500 and not _is_json(message)
                begun = not is_lost
            if not is_lost:
                await send(message)

        await self._app(scope, receive, send_on)
        if not begun:
            await send({"type": "http.response.start", "status": 503, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": _LOST})


def _is_json(start: "Message") -> bool:
    return any(name.lower() == b"content-type" and value.startswith(_JSON) for name, value in start.get("headers", ()))
