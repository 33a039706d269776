"""Byte echo over ASGI: a lower bound for a model server in Python, which does at least this work per request.

Echoes gRPC (content-type application/grpc over HTTP/2, with trailers) and plain HTTP requests. `echoes` in targets.py
runs it on h2corn.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]  # as in ASGI: the values depend on the message's type
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Echo one request's body."""
    if scope["type"] != "http":
        return
    body = await read_body(receive)
    if is_grpc(scope):
        await send_grpc(body, send)
    else:
        await send_http(body, send)


async def read_body(receive: Receive) -> bytes:
    """Return the whole body of a request."""
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def is_grpc(scope: Message) -> bool:
    """Return whether a request is a gRPC call."""
    return (b"content-type", b"application/grpc") in scope["headers"]


async def send_grpc(framed: bytes, send: Send) -> None:
    """Respond to a gRPC call with OK and a message in its frame."""
    headers = [(b"content-type", b"application/grpc")]
    await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": True})
    await send({"type": "http.response.body", "body": framed})
    await send({"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]})


async def send_http(body: bytes, send: Send, *more: tuple[bytes, bytes]) -> None:
    """Respond to a request with JSON, and with `more` headers."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
