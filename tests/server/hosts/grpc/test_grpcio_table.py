"""Tests for the reading of a unary call's message, on a real server in this process."""

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from tests.server.hosts import raw_http2
from tests.server.hosts.grpc_calls import two_way_stream, unary
from tests.support.guards import make_guard
from tests.support.open_gate import OPEN_GATE
from tpuserve_server.core.budgets.sending import SendingBudget
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.errors import Unauthenticated
from tpuserve_server.frontends.guard import ALLOW_ALL, Attempt, Rule
from tpuserve_server.frontends.rpc import CallContext, UnaryMethod
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.grpc.grpcio_table import TableHandler
from tpuserve_server.hosts.grpc.limits import channel_arguments
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.access import OPEN


async def echo(request: bytes, _context: CallContext) -> bytes:
    return request


class RefuseAll:
    """A rule that refuses every call."""

    async def check(self, attempt: Attempt) -> None:
        raise Unauthenticated("who?")


@contextlib.asynccontextmanager
async def served(request_timeout_s: float, rule: Rule = ALLOW_ALL) -> AsyncIterator[str]:
    methods = make_guard(rule).wrap_table({"/echo.Echo/Unary": UnaryMethod(echo, OPEN)})
    sending = SendingBudget(1 << 30, 1 << 30, 30, SystemClock())
    table = TableHandler(methods, InFlight(), OPEN_GATE, sending, request_timeout_s=request_timeout_s)
    server = grpc.aio.server(handlers=[table], options=list(channel_arguments(HostOptions()).items()))
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


async def test_a_refused_call_gets_no_window_for_its_message() -> None:
    def offer(address: str) -> int:
        with contextlib.closing(raw_http2.connect(address)) as client:
            begin = struct.pack(">BI", 0, 16 << 20) + bytes(10_000)
            client.sendall(raw_http2.grpc_call(1, "/echo.Echo/Unary") + raw_http2.data(1, begin))
            return raw_http2.granted_bytes(client, 1)

    # grpcio widens the window as soon as a handler reads, here until the message is late.
    async with served(0.5) as address:
        assert await asyncio.to_thread(offer, address) > 1 << 20
    async with served(60, RefuseAll()) as address:
        assert await asyncio.to_thread(offer, address) == 0
        async with grpc.aio.insecure_channel(address) as channel:
            call = two_way_stream(channel, "Unary")()
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert await call.details() == "who?"
