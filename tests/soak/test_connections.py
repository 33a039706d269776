"""Tests for the meaning of failures that a client sees, with a server that misbehaves on real connections."""

import ssl
from asyncio import StreamReader, StreamWriter, start_server
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.soak.connections import Address, Connections
from tests.soak.hints import Hints
from tests.soak.outcome import Kind, RequestError
from tests.soak.question import WrongAnswerError
from tests.support.certificates import Authority
from tests.support.free_ports import free_ports

ERROR = b'{"error":"the reason"}'


@asynccontextmanager
async def server(folder: Path, response: bytes) -> AsyncIterator[Connections]:
    """Yield connections to a server that sends these bytes after a request, and closes."""
    authority = Authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server.cert, authority.server.key)
    [port] = free_ports(1)

    async def answer(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    async with (
        await start_server(answer, "127.0.0.1", port, ssl=context),
        Connections(Address(f"127.0.0.1:{port}", f"https://127.0.0.1:{port}", authority.ca)) as at,
    ):
        yield at


def http(status: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(ERROR)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + ERROR


@pytest.mark.parametrize(
    ("response", "kind", "code"),
    [
        (b"", Kind.ENDED, ""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", Kind.ENDED, ""),
        (http("503 X", "retry-after: 1"), Kind.ERROR, "UNAVAILABLE"),
        (http("504 X"), Kind.ERROR, "DEADLINE_EXCEEDED"),
        (http("418 X"), Kind.ERROR, "HTTP 418"),
    ],
)
async def test_each_end_of_a_rest_request_is_told_apart(tmp_path: Path, response: bytes, kind: Kind, code: str) -> None:
    async with server(tmp_path, response) as at:
        with pytest.raises(RequestError) as caught:
            await at.request("POST", "/", b"{}", Hints())
    assert (caught.value.outcome.kind, caught.value.outcome.code) == (kind, code)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (http("503 X"), "503 without Retry-After: the reason"),
        (b"HTTP/1.1 400 X\r\ncontent-length: 0\r\n\r\n", "400 b''"),
    ],
)
async def test_errors_without_a_retry_hint_or_a_message_are_wrong(
    tmp_path: Path, response: bytes, message: str
) -> None:
    async with server(tmp_path, response) as at:
        with pytest.raises(WrongAnswerError, match=message):
            await at.request("POST", "/", b"{}", Hints())


async def test_a_server_that_does_not_listen_refuses(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    [port] = free_ports(1)
    address = Address(f"127.0.0.1:{port}", f"https://127.0.0.1:{port}", authority.ca)
    async with Connections(address) as at:
        for send in (
            at.request("GET", "/", None, Hints()),
            at.call("/a/B", b"", Hints()),
            at.stream("/a/C", [b""], Hints()),
        ):
            with pytest.raises(RequestError) as caught:
                await send
            assert caught.value.outcome.kind is Kind.REFUSED


async def test_a_certificate_of_another_authority_is_no_refusal(tmp_path: Path) -> None:
    """Do not take it for a server that restarts."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    (tmp_path / "own").mkdir()
    async with server(tmp_path / "own", b"") as at:
        address = Address("127.0.0.1:1", str(at.http.base_url), other.ca)
        async with Connections(address) as strange:
            with pytest.raises(RequestError) as caught:
                await strange.request("GET", "/", None, Hints())
    assert caught.value.outcome.kind is Kind.ENDED
