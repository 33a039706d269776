"""Tests for the limit on messages of methods other than inference."""

from collections.abc import AsyncIterator

import pytest

from tpuserve_server.access.access import OPEN
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import ResourceExhausted
from tpuserve_server.protocols.rpc import CallContext, StreamMethod, UnaryMethod
from tpuserve_server.protocols.table import MAX_SMALL_BYTES, limit_messages

CONTEXT = CallContext(Deadline.never(), {})


async def echo(body: bytes, _context: CallContext) -> bytes:
    return body


async def echo_all(messages: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


async def two(first: bytes, second: bytes) -> AsyncIterator[bytes]:
    yield first
    yield second


async def test_only_inference_takes_large_messages() -> None:
    table = limit_messages({"/infer": UnaryMethod(echo, OPEN), "/status": UnaryMethod(echo, OPEN)}, {"/infer"})
    infer, status = table["/infer"], table["/status"]
    assert isinstance(infer, UnaryMethod)
    assert isinstance(status, UnaryMethod)
    assert (infer.max_message_bytes, status.max_message_bytes) == (None, MAX_SMALL_BYTES)
    large = bytes(MAX_SMALL_BYTES + 1)
    assert await infer.handle(large, CONTEXT) == large
    assert await status.handle(large[1:], CONTEXT) == large[1:]
    with pytest.raises(ResourceExhausted, match="at most 1048576 bytes; was 1048577"):
        await status.handle(large, CONTEXT)


async def test_a_large_message_of_a_stream_ends_it() -> None:
    method = limit_messages({"/watch": StreamMethod(echo_all, OPEN)}, ())["/watch"]
    assert isinstance(method, StreamMethod)
    assert method.max_message_bytes == MAX_SMALL_BYTES
    answers = method.handle(two(b"a", bytes(MAX_SMALL_BYTES + 1)), CONTEXT)
    assert await anext(answers) == b"a"
    with pytest.raises(ResourceExhausted):
        await anext(answers)
