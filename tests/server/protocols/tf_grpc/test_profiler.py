"""Tests for ProfilerService with a tracer that records nothing: sessions, their ends, and the responses."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
from google.protobuf.message import Message

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_formats.messages.official import ProfileOptions, XSpace
from tpuserve_formats.messages.pool import message_class
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Internal, InvalidArgument, ServingError, Unimplemented
from tpuserve_server.core.terms.tracer import TraceOptions
from tpuserve_server.protocols.rpc import CallContext, StreamMethod
from tpuserve_server.protocols.table import rpc_table
from tpuserve_server.protocols.tf_grpc.profiler import ProfilerMethods

CONTEXT = CallContext(Deadline.never(), {})
LONG_MS = 60_000
NOW_NS = 1_700_000_000_000_000_000
SECOND_NS = 10**9


def message(name: str, **fields: object) -> Message:
    made: Message = message_class("tpuserve_server/profiler_service.proto", name)(**fields)
    return made


def profile_request(duration_ms: int, session_id: str = "now", *, start_ns: int = 0, **fields: object) -> bytes:
    options = ProfileOptions(version=1, host_tracer_level=2, device_tracer_level=1, duration_ms=duration_ms)
    options.start_timestamp_ns = start_ns
    fields = {"opts": options, "session_id": session_id, "repository_root": "/somewhere", **fields}
    return bytes(message("ProfileRequest", **fields).SerializeToString())


def a_trace(events: int = 1) -> XSpace:
    space = XSpace(hostnames=["here"])
    line = space.planes.add(id=3, name="/host:CPU").lines.add(id=1, timestamp_ns=2)
    for _ in range(events):
        line.events.add(metadata_id=1)
    return space


class FakeTracer:
    """A tracer that records its calls and returns the test's trace."""

    def __init__(self) -> None:
        self.trace = a_trace()
        self.started: list[TraceOptions] = []
        self.stopped = 0
        self.is_running = threading.Event()
        self.fault: ServingError | None = None

    def start(self, options: TraceOptions) -> None:
        if self.fault is not None:
            raise self.fault
        self.started.append(options)
        self.is_running.set()

    def stop(self) -> bytes:
        self.stopped += 1
        return bytes(self.trace.SerializeToString())

    def span(self, name: str, **facts: str | int) -> contextlib.AbstractContextManager[object]:
        raise NotImplementedError


class Bench:
    def __init__(self) -> None:
        self.tracer = FakeTracer()
        self.methods = ProfilerMethods(self.tracer, unix_ns=lambda: NOW_NS)

    async def profile(self, body: bytes) -> Message:
        answer = await self.methods.profile(body, CONTEXT)
        response = message("ProfileResponse")
        response.ParseFromString(answer)
        return response

    async def begin(self, body: bytes) -> asyncio.Task[Message]:
        """Start a session and return its task."""
        session = asyncio.create_task(self.profile(body))
        await asyncio.to_thread(self.tracer.is_running.wait)
        return session


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_the_trace_is_answered_as_a_file_for_the_client_to_write(bench: Bench) -> None:
    response = await bench.profile(profile_request(1))
    expected = message("ProfileResponse", tool_data=[{"name": "xplane.pb", "data": a_trace().SerializeToString()}])
    assert response == expected
    assert bench.tracer.started == [TraceOptions(2, 1)]
    assert bench.tracer.stopped == 1


async def test_it_is_answered_as_a_message_when_asked_for(bench: Bench) -> None:
    assert await bench.profile(profile_request(1, emit_xspace=True)) == message("ProfileResponse", xspace=a_trace())


@pytest.mark.parametrize("trace", [XSpace(), a_trace(events=0), XSpace(errors=["no device"])])
async def test_a_trace_without_events_says_so(bench: Bench, trace: XSpace) -> None:
    bench.tracer.trace = trace
    assert await bench.profile(profile_request(1)) == message("ProfileResponse", empty_trace=True)


async def test_a_second_session_is_refused_while_one_runs(bench: Bench) -> None:
    session = await bench.begin(profile_request(LONG_MS))
    with pytest.raises(Internal, match=r"^Another profiling session active\.$"):
        await bench.profile(profile_request(1, "another"))
    await bench.methods.terminate(message("TerminateRequest", session_id="now").SerializeToString(), CONTEXT)
    await session
    await bench.profile(profile_request(1, "third"))
    assert bench.tracer.stopped == 2


async def test_terminate_is_for_the_session_of_its_name(bench: Bench) -> None:
    session = await bench.begin(profile_request(LONG_MS))
    await bench.methods.terminate(message("TerminateRequest", session_id="other").SerializeToString(), CONTEXT)
    assert not bench.methods._end.is_set()
    answer = await bench.methods.terminate(message("TerminateRequest", session_id="now").SerializeToString(), CONTEXT)
    assert answer == b""
    assert (await session) != message("ProfileResponse", empty_trace=True)


async def test_a_caller_who_leaves_ends_the_session(bench: Bench) -> None:
    session = await bench.begin(profile_request(LONG_MS))
    running = bench.methods._session
    assert running is not None
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    await asyncio.wait([running])
    assert bench.tracer.stopped == 1
    await bench.profile(profile_request(1))


async def test_a_session_that_cannot_begin_is_no_session(bench: Bench) -> None:
    bench.tracer.fault = Internal("no")
    with pytest.raises(Internal, match=r"^no$"):
        await bench.profile(profile_request(1))
    bench.tracer.fault = None
    await bench.profile(profile_request(1))
    assert bench.tracer.stopped == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ProfileOptions(), TraceOptions(2, 1)),
        (ProfileOptions(version=1), TraceOptions(0, 0)),
        (ProfileOptions(version=1, host_tracer_level=9, device_tracer_level=9), TraceOptions(3, 1)),
    ],
)
async def test_levels_are_the_requests(bench: Bench, options: ProfileOptions, expected: TraceOptions) -> None:
    await bench.profile(message("ProfileRequest", opts=options).SerializeToString())
    assert bench.tracer.started == [expected]


@pytest.mark.parametrize("start_ns", [NOW_NS - SECOND_NS, NOW_NS, NOW_NS + 1000])
async def test_a_session_starts_at_the_requested_time_or_at_once_if_it_has_passed(bench: Bench, start_ns: int) -> None:
    await bench.profile(profile_request(1, start_ns=start_ns))
    assert bench.tracer.stopped == 1


async def test_a_session_that_ends_before_its_start_records_nothing(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.profile(profile_request(1, start_ns=NOW_NS + 60 * SECOND_NS)))
    await asyncio.sleep(0)
    with pytest.raises(Internal, match=r"^Another profiling session active\.$"):
        await bench.profile(profile_request(1, "another"))
    await bench.methods.terminate(message("TerminateRequest", session_id="now").SerializeToString(), CONTEXT)
    assert await waiting == message("ProfileResponse", empty_trace=True)
    assert bench.tracer.started == []


async def test_what_is_too_long_or_malformed_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidArgument, match="duration_ms must be at most 60000; was 60001"):
        await bench.profile(profile_request(60_001))
    with pytest.raises(InvalidArgument, match=r"start_timestamp_ns must be at most 60 s after .*; was 61 s"):
        await bench.profile(profile_request(1, start_ns=NOW_NS + 61 * SECOND_NS))
    with pytest.raises(InvalidArgument, match="Malformed ProfileRequest"):
        await bench.methods.profile(b"\xff", CONTEXT)
    with pytest.raises(InvalidArgument, match="Malformed TerminateRequest"):
        await bench.methods.terminate(b"\xff", CONTEXT)
    assert bench.tracer.started == []


async def test_monitor_is_not_there(bench: Bench) -> None:
    with pytest.raises(Unimplemented, match=r"^unimplemented\.$"):
        await bench.methods.monitor(b"", CONTEXT)


@pytest.mark.parametrize("tracer", [FakeTracer(), None])
async def test_the_service_is_listed_where_it_is_answered(tracer: FakeTracer | None) -> None:
    table = rpc_table(FakeService(), FakeMetrics(), FakeClock(), tracer=tracer)
    has_tracer = tracer is not None
    for method in ("Profile", "Terminate", "Monitor"):
        assert (f"/tensorflow.ProfilerService/{method}" in table) is has_tracer
    reflection = table["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"]
    assert isinstance(reflection, StreamMethod)

    async def requests() -> AsyncIterator[bytes]:
        yield b"\x3a\x00"  # list_services

    [answer] = [answer async for answer in reflection.handle(requests(), CONTEXT)]
    assert (b"tensorflow.ProfilerService" in answer) is has_tracer
