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
    body = await _read_body(receive)
    if _content_type(scope) == b"application/grpc":
        await _send_grpc(body, send)
    else:
        await _send_http(body, send)


async def _read_body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def _content_type(scope: Message) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bytes(value)
    return b""


async def _send_grpc(framed: bytes, send: Send) -> None:
    headers = [(b"content-type", b"application/grpc")]
    await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": True})
    await send({"type": "http.response.body", "body": framed})
    await send({"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]})


async def _send_http(body: bytes, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
