"""Faults of clients: bad requests, disconnects, and clients that send or read slowly. Others must not notice."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Final

import grpc
import httpx

from tests.faults.bad_request import BadRequest
from tests.faults.faulted_server import OIP_GRPC, PATHS, TF_GRPC
from tests.faults.json_requests import json_requests
from tests.faults.oip_requests import oip_requests
from tests.faults.proto_requests import proto_requests
from tests.soak.connections import Connections
from tests.soak.hints import PATIENCE_S, Hints
from tests.soak.outcome import RequestError
from tests.soak.question import COUNTED, Question
from tests.soak.scene import Scene, expect
from tests.soak.soaked_server import HEADER_TIMEOUT_S
from tests.soak.tf_grpc import predict

_BAD: Final = 25
_LEAVING: Final = 10
_BODY: Final = json.dumps({"instances": [[1.0, 2.0]]}).encode()
_PIPELINED: Final = 50
_PAUSE_S: Final = 0.1


async def bad_requests(scene: Scene) -> str:
    """Send bad requests over the connections of one client."""
    requests = scene.chance.sample(_bad_requests(), _BAD)
    async with Connections(scene.server.address) as at:
        for bad in requests:
            got = await _send(at, bad)
            if got not in bad.expected:
                expect(f"{got} for {bad.fault} ({bad.protocol})", *bad.expected)
    return f"{len(requests)} refused"


async def disconnects(scene: Scene) -> str:
    """Cancel calls, and close connections: after half of a body, and after a request without reading the answer."""
    async with Connections(scene.server.address) as at:
        for number in range(_LEAVING):
            call = asyncio.create_task(predict(at, Question(number, COUNTED), Hints()))
            await asyncio.wait({call}, timeout=scene.chance.uniform(0, 0.01))
            call.cancel()
            # A call may have been faster than its client.
            with contextlib.suppress(asyncio.CancelledError, RequestError):
                await call
    for number in range(_LEAVING):
        async with _connected(scene) as (_, writer):
            request = _post(_BODY)
            writer.write(request if number % 2 else request[: -len(_BODY) // 2])
            await writer.drain()
    return f"{_LEAVING} calls, {_LEAVING} connections"


async def slow_clients(scene: Scene) -> str:
    """Send a part of the headers, no TLS handshake, a slow body, and read many answers slowly, all at once."""
    results = await asyncio.gather(_headers(scene), _silence(scene), _body(scene), _reading(scene))
    return ", ".join(results)


async def _headers(scene: Scene) -> str:
    """Send some lines of the headers, then pause until the server cuts the connection."""
    async with _connected(scene) as (reader, writer), asyncio.timeout(HEADER_TIMEOUT_S + PATIENCE_S):
        writer.write(f"POST {PATHS['TF REST']} HTTP/1.1\r\nhost: x\r\n".encode())
        with contextlib.suppress(ConnectionError):
            expect(await reader.read(1000), b"")
    return "headers cut"


async def _silence(scene: Scene) -> str:
    """Connect without a TLS handshake, until the server closes the connection."""
    host, port = _rest(scene)
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.suppress(ConnectionError):
        expect(await asyncio.wait_for(reader.read(1000), HEADER_TIMEOUT_S + PATIENCE_S), b"")
    writer.close()
    return "silence cut"


async def _body(scene: Scene) -> str:
    """Send a body byte by byte. The request is valid, so it must be answered."""
    async with _connected(scene) as (reader, writer):
        request = _post(_BODY)
        writer.write(request[: -len(_BODY)])
        for byte in _BODY:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(_PAUSE_S)
        content = await asyncio.wait_for(reader.read(), PATIENCE_S)
    expect(json.loads(content.partition(b"\r\n\r\n")[2])["predictions"], [[2.0, 4.0]])
    return "body answered"


async def _reading(scene: Scene) -> str:
    """Send many requests, and read the answers a few bytes at a time.

    The server may announce the end of the connection with any answer, as after a new certificate. The client then sends
    the rest again (RFC 9112, 9.6).
    """
    left = _PIPELINED
    while left:
        content = await _read_slowly(scene, left)
        answers = content.count(b"HTTP/1.1 200")
        last = content.rpartition(b"HTTP/1.1 ")[2].lower()
        if not answers or b"connection: close" not in last:
            expect(f"{answers} of {left} answers, the last one: {last!r}", "an announced end")
        left -= answers
    return f"{_PIPELINED} answers read"


async def _read_slowly(scene: Scene, requests: int) -> bytes:
    async with _connected(scene) as (reader, writer):
        writer.write(_post(_BODY, close=False) * (requests - 1) + _post(_BODY))
        await writer.drain()
        content = b""
        while piece := await asyncio.wait_for(reader.read(500), PATIENCE_S):
            content += piece
            await asyncio.sleep(_PAUSE_S / 10)
    return content


_cache: list[BadRequest] = []


def _bad_requests() -> list[BadRequest]:
    """Return all bad requests. Their making compresses large bodies, so they are made once."""
    if not _cache:
        _cache.extend((*json_requests(), *proto_requests(), *oip_requests()))
    return _cache


async def _send(at: Connections, bad: BadRequest) -> str:
    """Return the code or the status."""
    path = bad.path or PATHS[bad.protocol]
    if bad.protocol in (TF_GRPC, OIP_GRPC):
        try:
            await at.channel.unary_unary(path)(bad.body, timeout=PATIENCE_S, metadata=tuple(bad.headers.items()))
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"
    try:
        return str((await at.http.post(path, content=bad.body, headers=dict(bad.headers))).status_code)
    except httpx.HTTPError as error:
        return repr(error)


@contextlib.asynccontextmanager
async def _connected(scene: Scene) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a TLS connection to the REST port."""
    host, port = _rest(scene)
    reader, writer = await asyncio.open_connection(host, port, ssl=scene.server.address.context())
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, OSError):
            await writer.wait_closed()


def _rest(scene: Scene) -> tuple[str, int]:
    host, _, port = scene.server.address.rest.removeprefix("https://").rpartition(":")
    return host, int(port)


def _post(body: bytes, *, close: bool = True) -> bytes:
    end = "connection: close\r\n" if close else ""
    return f"POST {PATHS['TF REST']} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{end}\r\n".encode() + body
