"""gRPC's message frames: how the body is cut into chunks must not matter."""

import asyncio
import gzip
import struct
import zlib
from functools import partial
from typing import Any

from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target, expect
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.core.terms.types import Body
from tpuserve_server.hosts.grpc_frames import FrameReader

_LIMIT_BYTES = 2048
_ENCODINGS = (b"identity", b"gzip", b"deflate", b"snappy")
_PREFIX = struct.Struct(">BI")
_Outcome = tuple[list[Body], Code | None]


def run(data: bytes) -> bool:
    """Read a body. The first byte selects the encoding, the second the size of the chunks."""
    if len(data) < 2:
        return False
    encoding, size, body = _ENCODINGS[data[0] % len(_ENCODINGS)], data[1] or 1, data[2:]
    whole = asyncio.run(_read(body, encoding, len(body) or 1))
    expect(whole == asyncio.run(_read(body, encoding, size)), "the chunks matter")
    asyncio.run(_read_only(body, encoding, size))
    messages, code = whole
    if encoding == b"identity" and code is None:
        expect(b"".join(_PREFIX.pack(0, len(each)) + each for each in messages) == body, "the messages differ")
    elif code is None and messages:
        expect(messages[0] == _first(body, encoding), "the inflated message differs")
    return code is None


def _first(body: bytes, encoding: bytes) -> bytes:
    is_compressed, length = _PREFIX.unpack_from(body)
    message = body[_PREFIX.size : _PREFIX.size + length]
    if not is_compressed:
        return message
    return gzip.decompress(message) if encoding == b"gzip" else zlib.decompressobj().decompress(message)


def _reader(body: bytes, encoding: bytes, size: int) -> FrameReader:
    chunks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": index + 1 < len(chunks)}
        for index, chunk in enumerate(chunks)
    ]
    rest = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(rest)

    begin_upload = partial(ReceivingBudget(1 << 20, 1 << 20, SystemClock()).begin, None)
    return FrameReader(receive, _LIMIT_BYTES, encoding, begin_upload)


async def _read(body: bytes, encoding: bytes, size: int) -> _Outcome:
    messages: list[Body] = []
    try:
        reader = _reader(body, encoding, size)
        try:
            while (message := await reader.next()) is not None:
                messages.append(message)
        finally:
            reader.close()
    except ServingError as error:
        _check(error)
        return messages, error.code
    return messages, None


async def _read_only(body: bytes, encoding: bytes, size: int) -> None:
    try:
        await _reader(body, encoding, size).only()
    except ServingError as error:
        _check(error)


def _check(error: ServingError) -> None:
    # gRPC's own libraries answer INTERNAL for malformed frames.
    check_refusal(error, Code.INTERNAL)


TARGET = Target(run, max_bytes=4096)
