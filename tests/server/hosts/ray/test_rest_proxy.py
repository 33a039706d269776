"""Tests for the REST proxies of Ray Serve: a lost replica is 503, and the replica's own answers pass."""

import json
from collections.abc import Sequence

import pytest
from starlette.types import Message, Receive, Scope, Send

from tpuserve_server.hosts.ray.rest_proxy import middlewares

TEXT = [(b"Content-Type", b"text/plain; charset=utf-8"), (b"content-length", b"20")]
JSON = [(b"content-type", b"application/json")]


async def answer(messages: Sequence[Message], kind: str = "http") -> list[Message]:
    """Return what a client gets if the proxy sends `messages`."""
    sent: list[Message] = []

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    [middleware] = middlewares()
    await middleware.cls(proxy, *middleware.args, **middleware.kwargs)({"type": kind}, receive, send)
    return sent


def response(status: int, headers: list[tuple[bytes, bytes]], *bodies: bytes) -> list[Message]:
    start: Message = {"type": "http.response.start", "status": status, "headers": headers}
    return [start, *({"type": "http.response.body", "body": body, "more_body": True} for body in bodies)]


async def test_rays_text_for_a_lost_replica_becomes_an_error_to_retry() -> None:
    start, body = await answer(response(500, TEXT, b"Traceback", b" (most recent"))
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (503, b"application/json")
    assert "Send the request again" in json.loads(body["body"])["error"]
    assert int(dict(start["headers"])[b"content-length"]) == len(body["body"])


@pytest.mark.parametrize(
    ("status", "headers"), [(200, JSON), (500, JSON), (404, TEXT), (503, TEXT), (200, []), (408, TEXT)]
)
async def test_other_answers_pass(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    messages = response(status, headers, b"a", b"b")
    assert await answer(messages) == messages


async def test_websockets_pass() -> None:
    messages: list[Message] = [{"type": "websocket.close", "code": 1000}]
    assert await answer(messages, "websocket") == messages


async def test_a_proxy_without_an_answer_has_lost_the_replica() -> None:
    start, _ = await answer([])
    assert start["status"] == 503
