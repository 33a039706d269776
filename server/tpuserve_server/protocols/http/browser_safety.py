"""Headers of every response that keep browsers and proxies from misusing it.

A response may contain text of a client, such as a model's name in an error. `nosniff` keeps browsers from taking it for
a page. `no-store` keeps responses to GET out of caches: a shared cache may not know that a key in x-api-key decides who
may read them.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
NO_STORE: Final = (b"cache-control", b"no-store")


class SafeResponses:
    """Adds the headers to the responses of an application that does not set them itself."""

    def __init__(self, app: "ASGIApp") -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request."""

        async def send_safely(message: "Message") -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                missing = [header for header in (NO_SNIFFING, NO_STORE) if header[0] not in names]
                message = {**message, "headers": [*message["headers"], *missing]}
            await send(message)

        await self._app(scope, receive, send_safely)
