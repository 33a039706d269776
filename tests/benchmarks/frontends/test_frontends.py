"""Tests for the benchmark of front-end processes: its roles, limits and report, and the engine alone with drivers."""

import io
import json
import os
import threading
import time

import psutil
import pytest
from rich.console import Console

from benchmarks.frontends.frontends import default_counts, median
from benchmarks.frontends.measured_engine import EngineTime, measure_engine
from benchmarks.frontends.points import FrontEndPoint
from benchmarks.frontends.report import Outcome, as_json, print_outcome
from benchmarks.frontends.roles import Role, RoleCost, role_costs
from benchmarks.harness.load_tools import Load
from benchmarks.harness.thread_times import ThreadKey, read_thread_times, spent_s
from tpuserve_server.core.thread_name import name_thread


def engine(loop_us: float, device_us: float, *, drivers: int = 4) -> EngineTime:
    return EngineTime(drivers, 32, 1000, 64.0, loop_us, device_us, 50_000.0)


def point() -> FrontEndPoint:
    costs: dict[Role, RoleCost] = {"engine": RoleCost(6.0, 4.0, 0.0, 1.0), "front-ends": RoleCost(60.0, 0.0, 45.0, 2.0)}
    return FrontEndPoint(2, "grpc", 32, Load(100, 0, 1.0, 1.0, 2.0, 0.5), costs)


def test_the_busiest_thread_without_a_name_is_the_loop_and_roles_are_summed() -> None:
    spent = {
        ThreadKey(1, 1, "python"): 0.002,
        ThreadKey(1, 5, "python"): 0.001,
        ThreadKey(1, 6, "device-mlp-1"): 0.009,
        ThreadKey(2, 2, "envoy"): 0.001,
        ThreadKey(2, 7, "envoy"): 0.004,
        ThreadKey(2, 8, "wrk:worker_0"): 0.005,
        ThreadKey(3, 9, "envoy"): 0.006,
        ThreadKey(4, 4, "sh"): 1.0,
    }
    costs = role_costs({1: "engine", 2: "front-ends", 3: "front-ends"}, spent, 1000)
    assert costs["engine"] == RoleCost(2.0, 9.0, 0.0, 1.0)
    assert costs["front-ends"] == RoleCost(10.0, 0.0, 5.0, 1.0)
    assert set(costs) == {"engine", "front-ends"}


def test_a_thread_has_its_own_name_and_cpu_time() -> None:
    ready, enough = threading.Event(), threading.Event()

    def burn() -> None:
        name_thread()
        while time.thread_time() < 0.05:
            pass
        ready.set()
        enough.wait()

    me = psutil.Process()
    before = read_thread_times([me])
    burner = threading.Thread(target=burn, name="device-burner-1")
    burner.start()
    ready.wait()
    spent = spent_s(before, read_thread_times([me]))
    enough.set()
    burner.join()
    # The kernel rounds to ticks of 10 ms.
    assert spent[ThreadKey(os.getpid(), burner.native_id or 0, "device-burner-1")] >= 0.03


def test_a_serial_time_above_the_limit_is_missed() -> None:
    for loop_us, verdict in ((3.9, "reached"), (4.1, "missed")):
        outcome = Outcome(5, 2, 0.0, (point(),), (engine(9.0, 9.0, drivers=1), engine(loop_us, 2.0)))
        document = json.loads(json.dumps(as_json(outcome)))
        assert document["limits"][0]["verdict"] == verdict
        output = io.StringIO()
        print_outcome(outcome, Console(file=output, width=150))
        assert f": {verdict}" in output.getvalue()


def test_the_limit_of_the_engine_and_the_front_ends_that_reach_it() -> None:
    assert point().limit_per_s == pytest.approx(100_000)
    assert point().enough_front_ends == pytest.approx(6)


def test_the_median_of_rounds_is_taken_of_each_part() -> None:
    found = median([engine(1.0, 9.0), engine(2.0, 8.0), engine(9.0, 1.0)])
    assert (found.loop_us, found.device_us, found.requests) == (2.0, 8.0, 3000)


def test_counts_are_powers_of_two_up_to_the_cores() -> None:
    assert [default_counts(cores) for cores in (1, 2, 4, 6, 8)] == [(1, 2), (1, 2), (1, 2, 4), (1, 2, 4), (1, 2, 4, 8)]


@pytest.mark.timeout(120)
def test_drivers_keep_the_engine_busy_and_end_with_it() -> None:
    children = {child.pid for child in psutil.Process().children()}
    found = measure_engine(2, 8, 0.2)
    assert found.requests > 0
    assert 1 <= found.batch_requests <= 16
    assert found.loop_us > 0
    assert found.device_us > 0
    assert {child.pid for child in psutil.Process().children()} <= children
