"""Tests for the reading of a unary call's message, on a real server in this process."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from tests.server.hosts import raw_http2
from tests.server.hosts.grpc_calls import two_way_stream, unary
from tests.support.open_gate import OPEN_GATE
from tpuserve_server.frontends.guarded import admit_every_call
from tpuserve_server.frontends.rpc import CallContext, UnaryMethod
from tpuserve_server.hosts.grpc.grpcio_table import TableHandler
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.access import OPEN


async def echo(request: bytes, _context: CallContext) -> bytes:
    return request


@contextlib.asynccontextmanager
async def served(request_timeout_s: float) -> AsyncIterator[str]:
    methods = admit_every_call({"/echo.Echo/Unary": UnaryMethod(echo, OPEN)})
    table = TableHandler(methods, InFlight(), OPEN_GATE, request_timeout_s=request_timeout_s)
    server = grpc.aio.server(handlers=[table])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_message_that_is_late_ends_its_call_alone() -> None:
    def send_half(address: str) -> set[int]:
        with contextlib.closing(raw_http2.connect(address)) as client:
            client.sendall(raw_http2.grpc_call(1, "/echo.Echo/Unary") + raw_http2.data(1, b"\0\0\0\0\x09half"))
            return raw_http2.ended_streams(client, 1)

    async with served(0.05) as address:
        assert await asyncio.to_thread(send_half, address) == {1}
        async with grpc.aio.insecure_channel(address) as channel:
            assert await unary(channel, "Unary")(b"next") == b"next"


async def test_late_message_is_deadline_exceeded() -> None:
    async with served(0.05) as address, grpc.aio.insecure_channel(address) as channel:
        call = two_way_stream(channel, "Unary")()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await call.details() == "The message did not arrive within 0.05 seconds"


async def test_answers_to_calls_that_have_ended_are_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("grpc._cython.cygrpc")
    async with served(60):
        for error in (grpc.aio.InternalError("ExecuteBatchError"), ValueError("bug")):
            log.error("raised in core", exc_info=error)
    logged = [record.exc_info and record.exc_info[0] for record in caplog.records if record.name == log.name]
    assert logged == [ValueError]


async def test_call_without_a_message_is_refused() -> None:
    async with served(60) as address, grpc.aio.insecure_channel(address) as channel:
        call = two_way_stream(channel, "Unary")()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await call.details() == "A unary call takes exactly one message"


async def test_stop_and_cancel_during_a_message_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with served(60) as address, grpc.aio.insecure_channel(address) as channel:
        calls = [two_way_stream(channel, "Unary")() for _ in range(2)]
        assert await unary(channel, "Unary")(b"next") == b"next"
        calls[0].cancel()
    assert await calls[1].code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    assert caplog.records == []
