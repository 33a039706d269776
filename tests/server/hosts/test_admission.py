"""Tests that the host's gRPC and replicas of Ray admit a call before they read or check its message."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import grpc
import pytest

from tests.server.hosts.asgi_client import HEADERS, Exchange, body
from tests.support.guards import make_guard
from tests.support.open_gate import OPEN_GATE
from tpuserve_server.access.access import READ, Identity, Role
from tpuserve_server.access.caller import caller_name, set_caller
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Code, Unauthenticated
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.grpc_frames import frame
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.ray.calls import ReplicaCalls
from tpuserve_server.protocols.guard import Attempt
from tpuserve_server.protocols.rpc import CallContext, GuardedTable, RpcTable, StreamMethod, UnaryMethod

if TYPE_CHECKING:
    from starlette.types import Message

UNARY, STREAM = "/echo.Echo/Unary", "/echo.Echo/Stream"
METHOD_LIMIT: Final = 100
HOST_LIMIT: Final = 1000
REFUSED: Final = (Code.UNAUTHENTICATED, "who?")


class Doorkeeper:
    """A rule for clients with the metadata `name`. It records the path of each call that it checks."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.has_checked = asyncio.Event()

    async def check(self, attempt: Attempt) -> None:
        self.paths.append(attempt.path)
        self.has_checked.set()
        name = attempt.headers.get("name")
        if name is None:
            raise Unauthenticated("who?")
        set_caller(Identity(name, frozenset(Role)))


async def greet(_body: bytes, _context: CallContext) -> bytes:
    return caller_name().encode()


async def greet_each(requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield caller_name().encode()


@pytest.fixture
def rule() -> Doorkeeper:
    return Doorkeeper()


@pytest.fixture
def table(rule: Doorkeeper) -> GuardedTable:
    methods: RpcTable = {
        UNARY: UnaryMethod(greet, READ, METHOD_LIMIT),
        STREAM: StreamMethod(greet_each, READ, METHOD_LIMIT),
    }
    return make_guard(rule).wrap_table(methods)


@pytest.fixture
def receiving() -> ReceivingBudget:
    return ReceivingBudget(1 << 20, 1 << 20, SystemClock())


@pytest.fixture
def app(table: GuardedTable, receiving: ReceivingBudget) -> GrpcOverAsgi:
    return GrpcOverAsgi(
        table,
        max_message_bytes=HOST_LIMIT,
        in_flight=InFlight(),
        receiving=receiving,
        sending=SendingBudget(1 << 30, 1 << 30, 30, SystemClock()),
        gate=OPEN_GATE,
    )


class Unread(Exchange):
    """A request whose body the host must not read."""

    async def receive(self) -> "Message":
        raise AssertionError("the host reads the body of a refused call")


@pytest.mark.parametrize("path", [UNARY, STREAM])
@pytest.mark.parametrize(
    "fault",
    [(b"grpc-encoding", b"unknown"), (b"grpc-timeout", b"0n"), (b"tpuserve-priority", b"?"), (b"x-other", b"1")],
)
async def test_a_refused_call_is_not_read(
    app: GrpcOverAsgi, rule: Doorkeeper, receiving: ReceivingBudget, path: str, fault: tuple[bytes, bytes]
) -> None:
    exchange = await Unread([], path=path, headers=[*HEADERS, fault, (b"x-request-id", b"id-7")]).run(app)
    assert exchange.status == REFUSED
    # Headers alone, as for every failure before a response.
    assert [message["type"] for message in exchange.sent] == ["http.response.start", "http.response.body"]
    assert (b"x-request-id", b"id-7") in exchange.sent[0]["headers"]
    assert (rule.paths, receiving.held_bytes) == ([path], 0)


@pytest.mark.parametrize("path", [UNARY, STREAM])
async def test_the_handler_of_an_admitted_call_sees_its_caller(app: GrpcOverAsgi, rule: Doorkeeper, path: str) -> None:
    exchange = await Exchange.unary(b"hello", (b"name", b"ann"), path=path).run(app)
    assert (exchange.status[0], exchange.content) == (Code.OK, frame(b"ann"))
    assert rule.paths == [path]


async def test_a_call_is_admitted_while_its_message_is_missing(app: GrpcOverAsgi, rule: Doorkeeper) -> None:
    exchange = Exchange([], headers=[*HEADERS, (b"name", b"ann")])
    running = asyncio.ensure_future(exchange.run(app))
    await rule.has_checked.wait()
    assert exchange.sent == []
    exchange.leave()
    assert (await running).status == (Code.CANCELLED, "The client disconnected")


@pytest.mark.parametrize("path", [UNARY, STREAM])
async def test_the_limit_of_a_method_needs_only_the_prefix_of_a_message(app: GrpcOverAsgi, path: str) -> None:
    for size, expected in ((METHOD_LIMIT, Code.INTERNAL), (METHOD_LIMIT + 1, Code.RESOURCE_EXHAUSTED)):
        prefix = [body(struct.pack(">BI", 0, size))]
        exchange = await Exchange(prefix, path=path, headers=[*HEADERS, (b"name", b"ann")]).run(app)
        assert exchange.status[0] == expected, exchange.status
        refused = await Exchange(prefix, path=path).run(app)
        assert refused.status == REFUSED


class ReplicaCall:
    """Ray's context of a call."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self._metadata = metadata
        self.status: tuple[grpc.StatusCode, str] | None = None

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        return list(self._metadata.items())

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def set_code(self, code: grpc.StatusCode) -> None:
        self.status = (code, "")

    def set_details(self, details: str) -> None:
        assert self.status is not None
        self.status = (self.status[0], details)

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        raise AssertionError


class Unserialized:
    """A message of Ray's proxy that a replica must not serialize."""

    def SerializeToString(self) -> bytes:
        raise AssertionError("the replica serializes the message of a refused call")


async def one(message: bytes | Unserialized) -> AsyncIterator[bytes | Unserialized]:
    yield message


async def test_a_replica_refuses_before_it_checks_the_message(table: GuardedTable, rule: Doorkeeper) -> None:
    calls = ReplicaCalls(table, ReceivingBudget(1000, 1000, SystemClock()), HOST_LIMIT, SystemClock())
    unary, stream = ReplicaCall({}), ReplicaCall({})
    assert (await calls.unary(UNARY, Unserialized(), unary)).SerializeToString() == b""
    answers = [each.SerializeToString() async for each in calls.stream(STREAM, one(Unserialized()), stream)]
    assert answers == [b""]
    assert unary.status == stream.status == (grpc.StatusCode.UNAUTHENTICATED, "who?")
    oversized = ReplicaCall({"name": "ann"})
    await calls.unary(UNARY, bytes(HOST_LIMIT + 1), oversized)
    assert oversized.status is not None
    assert oversized.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await calls.unary(UNARY, b"hello", ReplicaCall({"name": "ann"}))).SerializeToString() == b"ann"
    answers = [each.SerializeToString() async for each in calls.stream(STREAM, one(b"1"), ReplicaCall({"name": "bo"}))]
    assert answers == [b"bo"]
    assert rule.paths == [UNARY, STREAM, UNARY, UNARY, STREAM]
