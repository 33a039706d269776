"""Calls an ASGI application with scripted messages and records the messages that it sends."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuserve_server.hosts.grpc_frames import frame

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

HEADERS = [(b"host", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers")]


def body(data: bytes, *, more: bool = False) -> "Message":
    return {"type": "http.request", "body": data, "more_body": more}


@dataclass
class Exchange:
    """One request.

    After the scripted messages, `receive` waits until `leave`, as ASGI specifies. With `talkative` it returns empty
    bodies until then, like Envoy's embedding.
    """

    messages: "list[Message]"
    path: str = "/echo.Echo/Unary"
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: list(HEADERS))
    method: str = "POST"
    talkative: bool = False
    sent: "list[Message]" = field(default_factory=list)
    # Raised by each send after the first ones, as after a disconnect.
    send_error: Exception | None = None
    sends: int = 1

    def __post_init__(self) -> None:
        self._left = asyncio.Event()
        self._unread = list(self.messages)

    @classmethod
    def unary(cls, message: bytes, *headers: tuple[bytes, bytes], **fields: Any) -> "Exchange":  # noqa: ANN401
        return cls([body(frame(message))], headers=[*HEADERS, *headers], **fields)

    async def run(self, app: "ASGIApp") -> "Exchange":
        path, _, query = self.path.partition("?")
        is_grpc = (b"te", b"trailers") in self.headers
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "2" if is_grpc else "1.1",
            "extensions": {"http.response.trailers": {}} if is_grpc else {},
            "method": self.method,
            "path": path,
            "query_string": query.encode(),
            "headers": self.headers,
        }
        await app(scope, self.receive, self.send)
        return self

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> "Message":
        if self._unread:
            return self._unread.pop(0)
        if self.talkative and not self._left.is_set():
            return body(b"")
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: "Message") -> None:
        if self.send_error is not None and len(self.sent) >= self.sends:
            raise self.send_error
        self.sent.append(message)

    @property
    def http_status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def status(self) -> tuple[int, str]:
        """The grpc-status and grpc-message of the trailers, or of the headers if the response has only trailers."""
        last = self.sent[-1] if self.sent[-1]["type"] == "http.response.trailers" else self.sent[0]
        found = dict(last["headers"])
        return int(found[b"grpc-status"]), found.get(b"grpc-message", b"").decode()
