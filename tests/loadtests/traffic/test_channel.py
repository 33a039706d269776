"""Tests for the load tests' gRPC client against gRPC's own server: real sockets, in threads of this process."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import gevent
import grpc
import pytest
from gevent.socket import wait_read

from benchmarks.harness.targets import GRPC_PATH, echoes
from tests.support.free_ports import free_ports
from tpuserve_loadtests.traffic.channel import Channel
from tpuserve_loadtests.traffic.connection import GrpcError

ECHO, WAIT, ABORT = "/test/Echo", "/test/Wait", "/test/Abort"


class Methods(grpc.GenericRpcHandler):
    """A server's methods: Wait responds when `gate` opens, and Abort fails with the message as details."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.cancelled = threading.Event()
        self.metadata: dict[str, str] = {}
        self.time_left_s = 0.0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        handlers = {ECHO: self._echo, WAIT: self._wait, ABORT: self._abort}
        handler = handlers.get(handler_call_details.method)
        return None if handler is None else grpc.unary_unary_rpc_method_handler(handler)

    def _echo(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        self.metadata = {key: str(value) for key, value in context.invocation_metadata()}
        self.time_left_s = context.time_remaining()
        return message

    def _wait(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.cancelled.set)
        self.waiting.release()
        self.gate.wait(15)
        return message

    def _abort(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message.decode())


@contextmanager
def serving(target: str, methods: Methods, **options: int) -> Iterator[grpc.Server]:
    arguments = [(f"grpc.{name}", value) for name, value in {"so_reuseport": 0, **options}.items()]
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(64), handlers=[methods], options=arguments + unlimited)
    server.add_insecure_port(target)
    server.start()
    try:
        yield server
    finally:
        methods.gate.set()
        server.stop(None).wait()


@pytest.fixture
def methods() -> Methods:
    return Methods()


@pytest.fixture
def target(methods: Methods) -> Iterator[str]:
    target = f"127.0.0.1:{free_ports(1)[0]}"
    with serving(target, methods):
        yield target


@pytest.fixture
def channel(target: str) -> Iterator[Channel]:
    channel = Channel(target, 10.0)
    yield channel
    channel.close()


@pytest.mark.parametrize("size", [0, 1, 300, 16_379, 16_380, 65_530, 65_531, 5_000_000])
def test_a_message_comes_back_whole(channel: Channel, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert channel.call(ECHO, message) == message


def test_the_server_learns_what_grpc_tells_it(channel: Channel, methods: Methods) -> None:
    channel.call(ECHO, b"")
    assert methods.metadata["user-agent"] == "tpuserve-loadtest"
    assert 0 < methods.time_left_s <= 10


def test_large_and_small_messages_share_a_connection(channel: Channel) -> None:
    # Twenty times the initial flow-control window.
    large = b"x" * 20 * 65_535
    calls = [gevent.spawn(channel.call, ECHO, large if number % 5 == 0 else b"small") for number in range(50)]
    for number, call in enumerate(calls):
        assert call.get() == (large if number % 5 == 0 else b"small")


def test_a_quick_answer_does_not_wait_for_a_hundred_slow_ones(target: str) -> None:
    # gRPC's own client blocks under gevent: it waits for ten responses at a time.
    methods = Methods()
    target = f"127.0.0.1:{free_ports(1)[0]}"
    with serving(target, methods):
        channel = Channel(target, 10.0)
        slow = [gevent.spawn(channel.call, WAIT, b"slow") for _ in range(40)]
        gevent.sleep(0)
        assert channel.call(ECHO, b"quick") == b"quick"
        assert not any(call.ready() for call in slow)
        methods.gate.set()
        assert [call.get() for call in slow] == [b"slow"] * 40
        channel.close()


@pytest.mark.parametrize("details", ["The batch scheduling queue is full", "100 % Überlast\nzu viel", ""])
def test_a_status_comes_with_its_details(channel: Channel, details: str) -> None:
    with pytest.raises(GrpcError) as raised:
        channel.call(ABORT, details.encode())
    assert (raised.value.code, raised.value.details) == ("RESOURCE_EXHAUSTED", details)
    assert channel.call(ECHO, b"next") == b"next"


def test_an_unknown_method_is_unimplemented(channel: Channel) -> None:
    with pytest.raises(GrpcError, match="UNIMPLEMENTED: Method not found"):
        channel.call("/test/Nothing", b"")


def test_a_call_has_its_own_headers_and_a_shorter_deadline(channel: Channel, methods: Methods) -> None:
    channel.call(ECHO, b"", {"x-tpuserve-priority": "low"}, 5.0)
    assert methods.metadata["x-tpuserve-priority"] == "low"
    assert 0 < methods.time_left_s <= 5
    channel.call(ECHO, b"")
    assert "x-tpuserve-priority" not in methods.metadata
    assert methods.time_left_s > 5
    with pytest.raises(GrpcError, match=r"DEADLINE_EXCEEDED: no response within 0\.05 s"):
        channel.call(WAIT, b"", timeout_s=0.05)
    assert methods.cancelled.wait(15)
    assert channel.call(ECHO, b"next") == b"next"


def test_a_call_ends_at_its_deadline_and_the_server_knows(target: str, methods: Methods) -> None:
    channel = Channel(target, 2.0)  # long enough for the next call on a busy machine
    with pytest.raises(GrpcError, match="DEADLINE_EXCEEDED"):
        channel.call(WAIT, b"")
    assert channel.call(ECHO, b"next") == b"next"
    channel.close()
    assert methods.cancelled.wait(15)


def test_a_call_that_is_given_up_is_cancelled_at_the_server(channel: Channel, methods: Methods) -> None:
    call = gevent.spawn(channel.call, WAIT, b"")
    gevent.sleep(0)
    assert channel.call(ECHO, b"") == b""
    assert methods.waiting.acquire(timeout=120)
    call.kill()
    assert channel.call(ECHO, b"next") == b"next"
    assert methods.cancelled.wait(15)


def test_more_calls_than_a_connection_may_carry_share_several(methods: Methods) -> None:
    target = f"127.0.0.1:{free_ports(1)[0]}"
    with serving(target, methods, max_concurrent_streams=3):
        channel = Channel(target, 10.0)
        calls = [gevent.spawn(channel.call, WAIT, str(number).encode()) for number in range(20)]
        gevent.spawn_later(0.2, methods.gate.set)
        assert [call.get() for call in calls] == [str(number).encode() for number in range(20)]
        channel.close()


def test_a_server_that_leaves_answers_what_it_has_begun_and_its_successor_the_rest(methods: Methods) -> None:
    target = f"127.0.0.1:{free_ports(1)[0]}"
    channel = Channel(target, 10.0)
    with serving(target, methods) as server:
        begun = gevent.spawn(channel.call, WAIT, b"begun")
        gevent.sleep(0)
        assert channel.call(ECHO, b"") == b""
        assert methods.waiting.acquire(timeout=120)
        server.stop(15)
        gevent.sleep(0.1)
        methods.gate.set()
        assert begun.get() == b"begun"
    with serving(target, Methods()):
        assert channel.call(ECHO, b"next") == b"next"
    channel.close()


def test_a_connection_that_is_lost_fails_its_calls(methods: Methods) -> None:
    target = f"127.0.0.1:{free_ports(1)[0]}"
    channel = Channel(target, 10.0)
    with serving(target, methods) as server:
        calls = [gevent.spawn(channel.call, WAIT, b"") for _ in range(5)]
        gevent.sleep(0)
        assert channel.call(ECHO, b"") == b""
        server.stop(0)
        for call in calls:
            with pytest.raises(GrpcError, match=r"UNAVAILABLE|CANCELLED"):
                call.get()
    with pytest.raises(GrpcError, match=f"UNAVAILABLE: {target}: Connection refused"):
        channel.call(ECHO, b"")
    channel.close()


def test_a_server_that_does_not_speak_http2_is_told(target: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        channel = Channel(f"127.0.0.1:{listening.getsockname()[1]}", 10.0)
        call = gevent.spawn(channel.call, ECHO, b"")
        wait_read(listening.fileno())  # a blocking call would keep the channel from connecting
        accepted, _ = listening.accept()
        with accepted:
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            with pytest.raises(GrpcError, match="does not speak HTTP/2"):
                call.get()
        channel.close()


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_a_call(target: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        channel = Channel(f"127.0.0.1:{listening.getsockname()[1]}", 0.1)
        calls = [gevent.spawn(channel.call, ECHO, b"") for _ in range(3)]
        for call in calls:
            with pytest.raises(GrpcError, match="does not speak HTTP/2"):
                call.get()
        channel.close()


def test_a_unix_socket_is_a_target(tmp_path: Path) -> None:
    target = f"unix:{tmp_path / 's'}"
    with serving(target, Methods()):
        channel = Channel(target, 10.0)
        assert channel.call(ECHO, b"x") == b"x"
        channel.close()


@pytest.mark.slow
def test_the_server_library_of_the_echo_answers_too(tmp_path: Path) -> None:
    with echoes(tmp_path) as targets:
        channel = Channel(f"127.0.0.1:{targets['grpc'].port}", 10.0)
        large = b"x" * 1_000_000
        calls = [gevent.spawn(channel.call, GRPC_PATH, large if number % 9 == 0 else b"") for number in range(100)]
        assert [call.get() for call in calls] == [large if number % 9 == 0 else b"" for number in range(100)]
        channel.close()
