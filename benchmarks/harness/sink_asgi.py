"""Sinks over ASGI: applications that take a request's body and answer with a few bytes, as hosts of large requests.

`drop` frees the chunks of a body as they arrive, so that all copies of its process are those of the host. `join` copies
them once, into one body.
"""

from benchmarks.harness.echo_asgi import Message, Receive, Send, is_grpc, read_body, send_grpc, send_http

_ANSWER = bytes(12)
_FRAMED_ANSWER = bytes(4) + b"\x0c" + _ANSWER


async def join(scope: Message, receive: Receive, send: Send) -> None:
    """Join the body of one request, and answer."""
    if scope["type"] == "http":
        await read_body(receive)
        await _answer(scope, send)


async def drop(scope: Message, receive: Receive, send: Send) -> None:
    """Drop the body of one request, and answer."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await _answer(scope, send)


async def _answer(scope: Message, send: Send) -> None:
    if is_grpc(scope):
        await send_grpc(_FRAMED_ANSWER, send)
    else:
        await send_http(_ANSWER, send)
