"""Tests for front-end processes with their engine: how they start, share ports, end, and are started again."""

import contextlib
import http.client
import json
import os
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import trustme

from tests.faults.test_tls_reload import NEW, OLD, ReloadingHost, texts
from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess
from tests.server.hosts.test_host_lifecycle import assert_gone
from tpuserve_server.hosts.ending import LOST_REQUESTS

FRONT_ENDS = 2
OPTIONS: dict[str, object] = {"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0, "frontends": FRONT_ENDS}


class RunningFleet:
    """A host with front-end processes, and the processes of its last start."""

    def __init__(self, environment: dict[str, str], **options: object) -> None:
        self.host = HostProcess("envoy", {**OPTIONS, **options}, {**os.environ, **environment})
        self.engine = 0
        self.front_ends: list[int] = []

    def wait_until_open(self) -> None:
        """Read the announcements of every process after the start of an engine."""
        announced = [self.host.wait_for("announce") for _ in range(FRONT_ENDS + 1)]
        [engine] = [each for each in announced if each.get("engine")]
        others = [each for each in announced if not each.get("engine")]
        assert {(each["grpc"], each["rest"]) for each in others} == {(engine["grpc"], engine["rest"])}
        self.host.listening = others[0]
        self.engine, self.front_ends = engine["pid"], [each["pid"] for each in others]

    def wait_for_pids(self, expected: set[int]) -> None:
        """Make connections until every process of `expected`, and no other one, has answered."""
        answered: set[int] = set()
        while answered != expected:
            answered.add(int(httpx.get(f"{self.host.rest}/pid", timeout=PATIENCE_S).content))
            assert answered <= expected

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.host.process.pid).children(recursive=True)


@contextlib.contextmanager
def fleet(environment: dict[str, str] | None = None, **options: object) -> Iterator[RunningFleet]:
    running = RunningFleet(environment or {}, **options)
    try:
        yield running
    finally:
        family = running.family() if running.host.process.poll() is None else []
        if running.host.process.poll() is None:
            running.host.process.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        running.host.exit_code()


@contextlib.contextmanager
def fifo(path: Path) -> Iterator[int]:
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def holder(host: HostProcess, channel: grpc.Channel) -> tuple[Any, int]:
    """Begin a held call on a connection. Return it with the process that holds it."""
    held = unary(channel, "Held").future(b"slow")
    host.wait_for("held")
    return held, json.loads(unary(channel, "Environment")(b""))["own_pid"]


def events_until(host: HostProcess, event: str, count: int) -> list[dict[str, Any]]:
    return [host.wait_for(event) for _ in range(count)]


def test_front_end_that_dies_loses_its_own_requests_and_is_started_again_alone(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    ready = tmp_path / "ready"
    environment = {"ECHO_BECOMES_READY": str(ready)}
    with fifo(ready) as gate, fleet(environment, opens_when_ready=True, grpc_socket_path=str(path)) as running:
        host = running.host
        host.wait_for("waits")
        [engine] = running.family()  # No front-end runs before the models are loaded.
        os.write(gate, b"ready")
        running.wait_until_open()
        assert running.engine == engine.pid
        running.wait_for_pids(set(running.front_ends))
        with grpc.insecure_channel(f"unix:{path}") as first, grpc.insecure_channel(f"unix:{path}") as again:
            lost, socket_owner = holder(host, first)
            [other] = set(running.front_ends) - {socket_owner}
            addresses = host.listening
            os.kill(socket_owner, signal.SIGKILL)
            assert lost.code() is grpc.StatusCode.UNAVAILABLE
            running.wait_for_pids({other})
            announced = host.wait_for("announce")
            assert (announced["grpc"], announced["rest"]) == (addresses["grpc"], addresses["rest"])
            assert unary(again, "Unary")(b"x", wait_for_ready=True, timeout=PATIENCE_S) == b"x"
            running.wait_for_pids({other, announced["pid"]})
            held, _ = holder(host, again)
            host.terminate()
            events_until(host, "drain", FRONT_ENDS + 1)
            assert not held.done()
            unary(again, "Open")(b"")
            assert held.result(PATIENCE_S) == b"slow"
        stopped = events_until(host, "stop", FRONT_ENDS + 1)
        assert [bool(each.get("engine")) for each in stopped] == [False, False, True]
        assert host.exit_code() == 0
        [ended] = [line for line in host.errors if "ended by itself" in line]
        assert "Front-end 0 ended by itself (signal SIGKILL); its requests in flight are lost" in ended
        assert not path.exists()


def test_end_and_damage_of_the_engine_start_everything_again_on_the_same_ports(tmp_path: Path) -> None:
    with fifo(tmp_path / "hang") as hang, fleet({"ECHO_ENGINE_HANGS": str(tmp_path / "hang")}) as running:
        host = running.host
        running.wait_until_open()
        first = running.engine, *running.front_ends
        second_server = HostProcess("envoy", {**OPTIONS, "rest_port": int(host.listening["rest"].rpartition(":")[2])})
        assert second_server.exit_code() == 1
        assert "the address is in use" in second_server.errors[-1]
        with grpc.insecure_channel(host.grpc) as channel:
            held, _ = holder(host, channel)
            os.write(hang, b"now")
            events_until(host, "drain", FRONT_ENDS + 1)
            unary(channel, "Open")(b"")
            assert held.result(PATIENCE_S) == b"slow"
        addresses = host.listening
        running.wait_until_open()
        second = running.engine, *running.front_ends
        assert not set(first) & set(second)
        os.kill(running.engine, signal.SIGSEGV)
        running.wait_until_open()
        assert (host.listening["grpc"], host.listening["rest"]) == (addresses["grpc"], addresses["rest"])
        running.wait_for_pids(set(running.front_ends))
        host.process.send_signal(signal.SIGHUP)
        assert sum(bool(each.get("engine")) for each in events_until(host, "reload", FRONT_ENDS + 1)) == 1
        host.terminate()
        events_until(host, "drain", 1)
        host.process.send_signal(signal.SIGTERM)
        assert host.exit_code() == 128 + signal.SIGTERM
        for pid in (*first, *second, running.engine, *running.front_ends):
            assert_gone(pid)
        assert [line for line in host.errors if "has drained and ended (an echo has taken too long)" in line]
        assert [line for line in host.errors if "The engine process ended by itself (signal SIGSEGV)" in line]


def test_front_end_that_dies_during_the_drain_is_told_by_the_exit_status() -> None:
    with fleet() as running:
        running.wait_until_open()
        with grpc.insecure_channel(running.host.grpc) as channel:
            _, pid = holder(running.host, channel)
            running.host.terminate()
            events_until(running.host, "drain", FRONT_ENDS + 1)
            os.kill(pid, signal.SIGKILL)
            assert running.host.exit_code() == LOST_REQUESTS
        assert [line for line in running.host.errors if "ended during the drain (signal SIGKILL)" in line]


def test_engine_that_will_never_serve_ends_the_host_without_a_front_end(tmp_path: Path) -> None:
    with (
        fifo(tmp_path / "ready") as gate,
        fleet({"ECHO_BECOMES_READY": str(tmp_path / "ready")}, opens_when_ready=True) as running,
    ):
        running.host.wait_for("waits")
        os.write(gate, b"doom")
        assert running.host.wait_for("stop")["engine"]
        assert running.host.exit_code() == 1
        assert running.host.errors[-1] == "tpuserve: There will never be an echo.\n"


def test_every_front_end_gets_new_certificates_and_ends_after_its_supervisor(tmp_path: Path) -> None:
    file = tmp_path / "tls.json"
    with fleet({"ECHO_TLS": str(file)}, tls=texts(OLD, OLD)) as running:
        running.wait_until_open()
        server, front_ends = ReloadingHost(running.host, file), set(running.front_ends)
        server.wait_until(seen_by(server, OLD, front_ends))
        server.reload(json.dumps(texts(NEW, NEW)))
        running.host.wait_for_error("New connections use the certificates that were read again")
        server.wait_until(seen_by(server, NEW, front_ends))
        # A front-end that is started later uses the new ones, too.
        killed = running.front_ends[0]
        os.kill(killed, signal.SIGKILL)
        front_ends = front_ends - {killed} | {running.host.wait_for("announce")["pid"]}
        server.wait_until(seen_by(server, NEW, front_ends))
        assert not server.serves(OLD)
        running.host.process.kill()
        stopped = events_until(running.host, "stop", FRONT_ENDS + 1)
        assert [bool(each.get("engine")) for each in stopped] == [False, False, True]
        for pid in (running.engine, *front_ends):
            assert_gone(pid)


def seen_by(server: ReloadingHost, authority: trustme.CA, front_ends: set[int]) -> Callable[[], bool]:
    """Return a condition: whether new connections of an authority's client have reached every front-end."""
    answered: set[int] = set()

    def are_seen() -> bool:
        with contextlib.suppress(ssl.SSLError, ConnectionError, http.client.HTTPException):
            answered.add(_pid(server, authority))
        assert answered <= front_ends
        return answered == front_ends

    return are_seen


def _pid(server: ReloadingHost, authority: trustme.CA) -> int:
    with server.rest(authority) as connection:
        connection.sendall(b"GET /pid HTTP/1.1\r\nhost: x\r\n\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        return int(response.read())
