"""Tests for workers and their coordinator when a process is missing or killed, with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.loadtests.truth.script import Script
from tests.loadtests.truth.scripted_server import serving as scripted
from tests.support.free_ports import free_ports
from tpuserve_loadtests.traffic.heartbeats import PATIENCE_BEATS, Heartbeats, worker_name

# Heartbeats at twice the default rate: short tests, and a busy machine still does not lose a worker.
# Ctrl-C works in the background too.
CLOCK = "import time; clock = time.perf_counter; time.perf_counter = lambda: clock() + {}; "
COMMAND = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tpuserve_loadtests.traffic import heartbeats; heartbeats.BEAT_S = 0.5; "
    "from tpuserve_loadtests.cli import main; main()",
]
Process = subprocess.Popen[str]


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


@contextmanager
def started(*arguments: str, clock_s: int = 0) -> Iterator[Process]:
    """Start a command, whose clock is `clock_s` ahead."""
    *python, code = COMMAND
    with subprocess.Popen(
        [*python, CLOCK.format(clock_s) + code, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: Process, words: str) -> str:
    """Read standard error until `words` appear, and return it."""
    assert process.stderr is not None
    lines = ""
    for line in process.stderr:
        lines += line
        if words in line:
            return lines
    raise AssertionError(f"it did not say {words!r} but {lines!r}")


def load(server: Doubling, *arguments: str) -> list[str]:
    options = ["--users", "4", "--duration", "10m", "--warm-up", "0", "--generator-limit", "note", "--json"]
    return ["run", MODEL, "--grpc", server.grpc_address, *UNRECORDED, *options, *arguments]


def test_a_load_of_which_a_worker_is_gone_says_which_and_is_not_reported_as_whole(server: Doubling) -> None:
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    with started("worker", place) as first, started("worker", place) as second:
        for worker in (first, second):  # workers may start before their coordinator
            assert said(worker, "Waiting").count("Waiting for") == 1
        with started(*load(server, "--remote", "2", "--listen", place)) as coordinator:
            assert server.reached.wait(60)
            with started("worker", place) as third:
                assert "it needs no more workers" in third.communicate(timeout=60)[1]
            assert third.returncode == 1
            os.kill(first.pid, signal.SIGKILL)
            output, errors = coordinator.communicate(timeout=60)
        assert "the load test is over" in second.communicate(timeout=60)[1]
    report: dict[str, Any] = json.loads(output)
    assert coordinator.returncode == 98, errors  # --generator-limit note does not apply to a lost worker
    assert report["generator"]["lost"] == [worker_name(first.pid)]
    assert report["notes"][0] == "stopped, because a worker of the load generator disconnected"
    assert f"it lost the worker on {worker_name(first.pid)}" in report["notes"][1]
    # The report keeps the other worker's results and does not estimate those of the lost worker.
    assert 0 < report["total"]["requests"] < len(server.rows)
    assert second.returncode == 0


def test_workers_whose_clocks_differ_send_a_constant_rate() -> None:
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    rate = ("--rate", "25", "--arrivals", "constant", "--duration", "2s", "--warm-up", "0")
    with scripted(Script(service_s=0.001)) as target:
        with started("worker", place, clock_s=1000), started("worker", place, clock_s=-50):
            command = ["run", "doubling", "--grpc", target.grpc, *rate, *UNRECORDED, "--generator-limit", "note"]
            with started(*command, "--remote", "2", "--listen", place) as coordinator:
                output, errors = coordinator.communicate(timeout=60)
        log = target.end()
    assert coordinator.returncode == 0, (output, errors)
    gaps_s = [second.arrived_s - first.arrived_s for first, second in pairwise(log.entries)]
    # Without a common start, every second request would follow its predecessor at another distance.
    assert len(gaps_s) == 49
    assert 0.5 < median(gaps_s[::2]) / median(gaps_s[1::2]) < 2


def test_a_process_of_several_that_ends_is_named_too(server: Doubling) -> None:
    with started(*load(server, "--processes", "2")) as coordinator:
        assert server.reached.wait(60)
        children = Path(f"/proc/{coordinator.pid}/task/{coordinator.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        output, errors = coordinator.communicate(timeout=60)
    assert coordinator.returncode == 98, errors
    assert json.loads(output)["generator"]["lost"] == [worker_name(int(children[1]))]


def test_a_worker_ends_where_its_coordinator_was_killed(server: Doubling) -> None:
    """Kill the coordinator during a load, and before it, while another worker is missing."""
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ExitStack() as stack:
        pairs = []
        for expected, place in zip("12", places, strict=True):
            coordinator = stack.enter_context(started(*load(server, "--remote", expected, "--listen", place)))
            pairs.append((coordinator, stack.enter_context(started("worker", place))))
        assert server.reached.wait(60)
        said(pairs[1][1], "Connected")
        for coordinator, _ in pairs:
            coordinator.kill()
        for (_, worker), place in zip(pairs, places, strict=True):
            errors = worker.communicate(timeout=60)[1]
            assert worker.returncode == 1
            assert errors.splitlines()[-1] == f"Error: {place}: disconnected, without a message for 5 s"


def test_ctrl_c_ends_a_worker_that_waits() -> None:
    (port,) = free_ports(1)
    with started("worker", f"127.0.0.1:{port}") as worker:
        said(worker, "Waiting")
        worker.send_signal(signal.SIGINT)
        assert worker.communicate(timeout=60) == ("", "")
    assert worker.returncode == -signal.SIGINT


def test_who_was_heard_of_in_time_is_there() -> None:
    beats = Heartbeats()
    beats.hear("a")
    for _ in range(PATIENCE_BEATS):
        beats.beat()
    beats.hear("b")
    assert beats.gone() == []
    beats.beat()
    assert beats.gone() == ["a"]
    beats.hear("a")
    assert beats.gone() == []
    for _ in range(PATIENCE_BEATS + 1):
        beats.beat()
    beats.forget("b")
    assert beats.gone() == ["a"]
