"""Tests for the start, drain and end of hosts: signals, failures, orphans, on both hosts if both support it."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio
import httpx
import psutil
import pytest

from tests.server.hosts.grpc_calls import UNLIMITED, server_stream, two_way_stream, unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running
from tpuserve_server.hosts.channel import LOST_REQUESTS
from tpuserve_server.hosts.limits import DRAIN_UNREAD_S


@pytest.fixture
def host() -> Iterator[HostProcess]:
    with running() as host:
        yield host


def assert_gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        psutil.Process(pid).wait(PATIENCE_S)
    except psutil.NoSuchProcess:
        return


class Pace:
    """Notices a pause of the client itself. A server that drains may close a connection that seems idle."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._answered_s = time.monotonic()

    def answered(self) -> None:
        self._answered_s = time.monotonic()

    @property
    def is_steady(self) -> bool:
        """Whether the client has had an answer recently."""
        return time.monotonic() - self._answered_s < self._longest_s


async def _call_until_refused(address: str, done: list[bytes], broken: list[str]) -> None:
    """Make calls without a pause until the server or its port refuses. Record any other failure in `broken`."""
    async with grpc.aio.insecure_channel(address) as channel:
        pace = Pace(0.1)
        for number in itertools.count():
            try:
                done.append(await unary(channel, "Unary")(b"%d" % number))
                pace.answered()
            except grpc.aio.AioRpcError as error:
                details = str(error.details())
                if "refused" not in details and details != "The server is shutting down" and pace.is_steady:
                    broken.append(details)
                return


def _post_until_refused(url: str, done: list[bytes], broken: list[str]) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:
        pace = Pace(0.5)
        for number in itertools.count():
            try:
                done.append(client.post(url, content=b"%d" % number).content)
                pace.answered()
            except httpx.ConnectError:
                return
            except httpx.HTTPError as error:
                if pace.is_steady:
                    broken.append(repr(error))
                return


async def test_sigterm_under_load_breaks_no_call_and_exits_0(host: HostProcess) -> None:
    done: list[bytes] = []
    broken: list[str] = []
    grpc_load = [_call_until_refused(host.grpc, done, broken) for _ in range(8)]
    rest_load = [asyncio.to_thread(_post_until_refused, host.rest, done, broken) for _ in range(4)]
    load = asyncio.gather(*grpc_load, *rest_load)
    while len(done) < 500:  # noqa: ASYNC110  # A list that threads fill has nothing to wait on.
        await asyncio.sleep(0.01)
    host.terminate()
    await load
    assert await asyncio.to_thread(host.exit_code) == 0
    assert broken == []
    assert host.wait_for("stop")["answered"] == len(done)


def test_sigterm_lets_a_held_call_end(host: HostProcess) -> None:
    with grpc.insecure_channel(host.grpc) as channel, httpx.Client(base_url=host.rest, timeout=PATIENCE_S) as client:
        client.get("/ready").raise_for_status()  # connect before the port closes
        held = unary(channel, "Held").future(b"slow")
        host.wait_for("held")
        host.terminate()
        host.wait_for("drain")
        client.get("/open").raise_for_status()
        assert held.result(PATIENCE_S) == b"slow"
    assert host.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_every_process_loses_no_call(host: HostProcess, number: signal.Signals) -> None:
    with grpc.insecure_channel(host.grpc) as channel, httpx.Client(base_url=host.rest, timeout=PATIENCE_S) as client:
        client.get("/ready").raise_for_status()  # connect before the port closes
        held = unary(channel, "Held").future(b"slow")
        host.wait_for("held")
        for pid in {host.serving_pid(), host.process.pid}:
            os.kill(pid, number)
        host.wait_for("drain")
        client.get("/open").raise_for_status()
        assert held.result(PATIENCE_S) == b"slow"
    assert host.exit_code() == 0


def test_signals_to_the_serving_process_alone_change_nothing() -> None:
    with running() as host, grpc.insecure_channel(host.grpc) as channel:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(host.serving_pid(), number)
            assert unary(channel, "Unary")(b"still") == b"still"
        host.terminate()
        assert host.exit_code() == 0


def test_readiness_says_no_while_requests_are_still_taken() -> None:
    with running(drain_delay_s=600.0) as host, grpc.insecure_channel(host.grpc) as channel:
        assert httpx.get(f"{host.rest}/ready", timeout=PATIENCE_S).status_code == 200
        host.terminate()
        host.wait_for("drain")
        assert httpx.get(f"{host.rest}/ready", timeout=PATIENCE_S).status_code == 503
        assert unary(channel, "Unary")(b"still") == b"still"
        host.terminate()  # a second SIGTERM skips the wait of ten minutes
        assert host.exit_code() == 128 + signal.SIGTERM


def test_what_comes_before_the_delay_is_over_is_waited_for() -> None:
    with running(drain_delay_s=0.5) as host:
        host.terminate()
        assert host.exit_code() == 0


def test_drain_does_not_wait_for_open_streams(host: HostProcess) -> None:
    with grpc.insecure_channel(host.grpc) as channel:
        watch = server_stream(channel, "Watch")(b"")
        assert next(watch) == b"watching"
        host.terminate()
        with pytest.raises(grpc.RpcError) as raised:
            next(watch)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert raised.value.details() == "The server is shutting down"
    assert host.exit_code() == 0


def test_stream_with_invalid_metadata_is_refused_and_does_not_hold_the_drain(host: HostProcess) -> None:
    with grpc.insecure_channel(host.grpc) as channel:
        watch = server_stream(channel, "Watch")(b"", metadata=[("x-tpuserve-timing", "2")])
        with pytest.raises(grpc.RpcError) as raised:
            next(watch)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert raised.value.details() == "x-tpuserve-timing must be 0 or 1; was '2'"
        host.terminate()
        assert host.exit_code() == 0
    assert host.errors == []


def test_drain_timeout_cuts_what_never_ends() -> None:
    with running(drain_timeout_s=0.3) as host, grpc.insecure_channel(host.grpc) as channel:
        held = unary(channel, "Held").future(b"")
        host.wait_for("held")
        host.terminate()
        assert held.code() is grpc.StatusCode.UNAVAILABLE
        assert held.details() == "The server is shutting down"
        assert host.exit_code() == LOST_REQUESTS


def test_drain_timeout_cuts_rest_with_an_answer() -> None:
    with running(drain_timeout_s=0.3) as host, ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(httpx.get, f"{host.rest}/stuck", timeout=PATIENCE_S)
        host.wait_for("held")
        host.terminate()
        answer = stuck.result(PATIENCE_S)
        assert (answer.status_code, answer.json()) == (503, {"error": "The server is shutting down"})
        assert host.exit_code() == LOST_REQUESTS
    assert any("Cancelled the requests that were still in flight after 0.3 s" in line for line in host.errors)


def test_drain_timeout_cuts_a_client_that_takes_no_answer() -> None:
    size = 32 << 20
    with running(drain_timeout_s=0.3) as host:
        address, port = host.listening["rest"].split(":")
        with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))
            assert client.recv(1)
            host.terminate()
            assert host.exit_code() == LOST_REQUESTS


def test_idle_client_that_stays_connected_costs_no_request() -> None:
    with running(drain_timeout_s=0.9) as host, httpx.Client() as client:
        assert client.get(f"{host.rest}/hello").status_code == 200
        host.terminate()
        assert host.exit_code() == 0
    assert host.errors == []


@pytest.mark.parametrize("cut", [False, True])
def test_application_that_never_stops_does_not_hold_the_process(cut: bool) -> None:
    environment = {**os.environ, "ECHO_NEVER_STOPS": "1"}
    with running(environment, drain_timeout_s=0.3) as host, ThreadPoolExecutor(1) as pool:
        if cut:
            stuck = pool.submit(httpx.get, f"{host.rest}/stuck", timeout=PATIENCE_S)
            host.wait_for("held")
        host.terminate()
        if cut:
            assert stuck.result(PATIENCE_S).status_code == 503
        assert host.exit_code() == (LOST_REQUESTS if cut else 0)
        assert_gone(host.serving_pid())
    [said] = [line for line in host.errors if "The application did not stop within 5 s" in line]
    assert said.endswith("Threads still running: uvloop_0\n")


def test_application_that_cannot_stop_is_an_error() -> None:
    with running({**os.environ, "ECHO_CANNOT_STOP": "1"}) as host:
        host.terminate()
        assert host.exit_code() == 1
    assert any("a bug in stop" in line for line in host.errors)


def test_port_lost_while_the_application_started_is_said_and_ends_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "ECHO_TAKES_PORT": str(port), "ECHO_NEVER_STOPS": "1"}
    host = HostProcess({"bind_address": "127.0.0.1", "grpc_port": None, "rest_port": port}, environment)
    try:
        assert host.exit_code() == 1
    finally:
        host.close()
    assert host.errors[0].startswith(f"tpuserve: Cannot listen for REST on 127.0.0.1:{port}: the address is in use.")


def test_orphaned_process_ends_although_its_application_never_stops() -> None:
    with running({**os.environ, "ECHO_NEVER_STOPS": "1"}) as host:
        host.process.kill()
        host.wait_for("stop")
        assert_gone(host.serving_pid())


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_forces_the_end(host: HostProcess, first: signal.Signals) -> None:
    with grpc.insecure_channel(host.grpc) as channel:
        held = unary(channel, "Held").future(b"")
        host.wait_for("held")
        host.process.send_signal(first)
        host.wait_for("drain")
        host.process.send_signal(signal.SIGTERM)
        assert host.exit_code() == 128 + signal.SIGTERM
        assert held.code() is grpc.StatusCode.UNAVAILABLE
    assert_gone(host.serving_pid())


def test_slow_client_gets_its_whole_answer_during_a_drain(host: HostProcess) -> None:
    size = 32 << 20
    address, port = host.listening["rest"].split(":")
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))
        first = client.recv(1)  # the response has begun, and most of it is in the server's buffers
        host.terminate()
        host.wait_for("drain")
        received = len(first) + sum(len(chunk) for chunk in iter(lambda: client.recv(1 << 20), b""))
    assert received > size
    assert host.exit_code() == 0


def _request_much(host: HostProcess, size: int) -> socket.socket:
    """Send a request with a response of `size` bytes, and read its first byte."""
    address, port = host.listening["rest"].split(":")
    client = socket.create_connection((address, int(port)), timeout=PATIENCE_S)
    client.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))
    assert client.recv(1)
    return client


def _send_ahead(host: HostProcess) -> socket.socket:
    """Send requests until the server reads no more of them, because this client reads no response."""
    address, port = host.listening["rest"].split(":")
    client = socket.create_connection((address, int(port)))
    client.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            client.sendall(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
    return client


@pytest.mark.slow
def test_drain_gives_up_clients_that_do_not_read_and_waits_for_slow_ones() -> None:
    size = 32 << 20
    pause = threading.Event()
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(running())
        stack.enter_context(_request_much(host, size))
        stack.enter_context(_send_ahead(host))
        slow = stack.enter_context(_request_much(host, size))
        channel = stack.enter_context(grpc.insecure_channel(host.grpc, UNLIMITED))
        stream = two_way_stream(channel, "Each")(bytes(1 << 20) for _ in range(64))
        next(stream)
        host.terminate()
        received = 1
        while piece := slow.recv(1 << 20):
            received += len(piece)
            # Longer in all than the time of a client that does not read.
            pause.wait(1.4 * DRAIN_UNREAD_S * len(piece) / size)
        assert received > size
        assert host.exit_code() == 0
        assert host.errors == []


def test_taken_port_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for which in ("grpc_port", "rest_port"):
            host = HostProcess({"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0, which: port})
            assert host.exit_code() == 1
            last = host.errors[-1]
            assert last.startswith("tpuserve: Cannot listen for ")
            with pytest.raises(AssertionError, match="ended before it said 'start'"):
                host.wait_for("start")  # before the application starts, because models load slowly
            assert last.endswith(
                f"on 127.0.0.1:{port}: the address is in use. Stop the process that uses it or choose another port.\n"
            )


def test_second_server_does_not_share_the_first_ones_port(host: HostProcess) -> None:
    port = int(host.grpc.rpartition(":")[2])
    second = HostProcess({"bind_address": "127.0.0.1", "grpc_port": port, "rest_port": None})
    assert second.exit_code() == 1


def test_application_that_cannot_start_is_said_in_one_line() -> None:
    host = HostProcess({"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0}, {**os.environ, "ECHO_FAILS": "1"})
    assert host.exit_code() == 1
    assert host.errors[-1] == "tpuserve: There is nothing to echo.\n"


def test_application_that_will_never_serve_ends_the_host_in_order() -> None:
    with running() as host:
        with grpc.insecure_channel(host.grpc) as channel, contextlib.suppress(grpc.RpcError):
            # A response may arrive or not, because the host ends meanwhile.
            unary(channel, "Doom")(b"", timeout=PATIENCE_S)
        host.wait_for("stop")
        assert host.exit_code() == 1
        assert host.errors[-1] == "tpuserve: There will never be an echo.\n"


def test_nothing_is_left_behind_in_the_temporary_folder(tmp_path: Path) -> None:
    options = {"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0}
    host = HostProcess(options, {**os.environ, "TMPDIR": str(tmp_path)})
    try:
        host.wait_for("announce")
        host.terminate()
        assert host.exit_code() == 0
    finally:
        host.close()
    assert list(tmp_path.iterdir()) == []


def test_killed_supervisor_leaves_no_process_and_cuts_no_call() -> None:
    with running() as host, grpc.insecure_channel(host.grpc) as channel:
        held = unary(channel, "Held").future(b"slow")
        host.wait_for("held")
        host.process.kill()
        host.wait_for("drain")
        unary(channel, "Open")(b"")
        assert held.result(PATIENCE_S) == b"slow"
        assert_gone(host.serving_pid())


def test_killed_process_is_started_again_on_the_same_addresses(tmp_path: Path) -> None:
    path = str(tmp_path / "grpc.sock")
    with running(grpc_socket_path=path) as host, grpc.insecure_channel(host.grpc) as channel:
        for number in (signal.SIGKILL, signal.SIGSEGV):
            held = unary(channel, "Held").future(b"")
            host.wait_for("held")
            before = host.listening
            os.kill(host.serving_pid(), number)
            assert held.code() is grpc.StatusCode.UNAVAILABLE
            host.listening = host.wait_for("announce")
            assert {**host.listening, "pid": before["pid"]} == before
            assert unary(channel, "Unary")(b"again", wait_for_ready=True, timeout=PATIENCE_S) == b"again"
            with grpc.insecure_channel(f"unix:{path}") as local:
                assert unary(local, "Unary")(b"again", timeout=PATIENCE_S) == b"again"
        host.terminate()
        assert host.exit_code() == 0
    ends = [line for line in host.errors if "The serving process ended by itself" in line]
    assert [how in line for how, line in zip(["SIGKILL", "SIGSEGV"], ends, strict=True)] == [True, True]


def test_process_whose_run_hangs_is_drained_and_replaced_on_the_same_addresses() -> None:
    with running(drain_delay_s=600.0) as host, grpc.insecure_channel(host.grpc) as channel:
        held = unary(channel, "Held").future(b"slow")
        host.wait_for("held")
        before = host.listening
        unary(channel, "Hang")(b"")
        host.wait_for("drain")
        assert not held.done()
        unary(channel, "Open")(b"")
        assert held.result(PATIENCE_S) == b"slow"
        host.listening = host.wait_for("announce")
        assert host.serving_pid() != before["pid"]
        assert {**host.listening, "pid": before["pid"]} == before
        assert unary(channel, "Unary")(b"again", wait_for_ready=True, timeout=PATIENCE_S) == b"again"
    [replaced] = [line for line in host.errors if "The serving process has drained and ended" in line]
    assert "(an echo has taken too long). It starts again" in replaced


def test_process_that_dies_during_the_drain_is_told_by_the_exit_status() -> None:
    with running() as host, grpc.insecure_channel(host.grpc) as channel:
        held = unary(channel, "Held").future(b"")
        host.wait_for("held")
        host.terminate()
        host.wait_for("drain")
        os.kill(host.serving_pid(), signal.SIGKILL)
        assert host.exit_code() == LOST_REQUESTS
        assert held.code() is grpc.StatusCode.UNAVAILABLE


def test_hang_up_reloads_and_user_signal_does_nothing(host: HostProcess) -> None:
    host.process.send_signal(signal.SIGUSR1)
    host.process.send_signal(signal.SIGHUP)
    host.wait_for("reload")
    with grpc.insecure_channel(host.grpc) as channel:
        assert unary(channel, "Unary")(b"still") == b"still"
    host.terminate()
    assert host.exit_code() == 0


def test_next_start_removes_what_sigkill_left(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with running(environment) as host:
        [left] = tmp_path.iterdir()
        os.kill(host.process.pid, signal.SIGSTOP)  # so that it does not start another process
        os.kill(host.serving_pid(), signal.SIGKILL)
        host.process.kill()
        host.exit_code()
        assert left.exists()
    with running(environment):
        assert not left.exists()


def test_sigterm_while_the_application_loads_ends_at_once(tmp_path: Path) -> None:
    loading = tmp_path / "loading"
    os.mkfifo(loading)
    options = {"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0}
    host = HostProcess(options, {**os.environ, "ECHO_LOADS": str(loading)})
    with loading.open("w"):  # opens when the application opens it, which then waits for a line
        host.terminate()
        assert host.exit_code() == 0


def test_first_process_that_a_signal_ends_while_it_starts_is_not_started_again(tmp_path: Path) -> None:
    loading = tmp_path / "loading"
    os.mkfifo(loading)
    options = {"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0}
    host = HostProcess(options, {**os.environ, "ECHO_LOADS": str(loading)})
    with loading.open("w"):  # opens when the application opens it, which then waits for a line
        [serving] = psutil.Process(host.process.pid).children()
        serving.kill()
        assert host.exit_code() == 1
    assert "The serving process could not start (signal SIGKILL)" in host.errors[-1]


def test_environment_of_the_process_has_no_setup(tmp_path: Path) -> None:
    with running() as host, grpc.insecure_channel(host.grpc) as channel:
        environment = json.loads(unary(channel, "Environment")(b""))
    for name in ("PYTHONHOME", "TPUSERVE_SERVING_PROCESS"):
        assert environment.get(name) == os.environ.get(name)
    assert environment["cwd"] == os.getcwd()
    assert not {"", "."} & set(environment["path"])
