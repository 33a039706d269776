"""Tests for loads that end after a number of requests. The server's count is the truth."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.support import forked_command
from tpuserve_loadtests.arrivals.load import PROCESSES, Load, Process, RateProfile
from tpuserve_loadtests.judgement.threshold import Hopeless, Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import WINDOWS, Counts, Recorder

UNLIMITED = float("inf")
BUSY_IS_FINE = ("--generator-limit", "note", "--server-metrics", "off")


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def run(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", "run", MODEL, *UNRECORDED, *arguments, *BUSY_IS_FINE)


def report(*arguments: str) -> dict[str, Any]:
    ended = run(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.mark.parametrize("load", [("--users", "3"), ("--rate", "300"), ("--users", "3", "--think-time", "5ms")])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_run_sends_exactly_the_number_of_requests(server: Doubling, load: tuple[str, ...], processes: str) -> None:
    options = ("--requests", "101", "--warm-up", "100ms", "--processes", processes)
    found = report("--grpc", server.grpc_address, *load, *options)
    assert found["total"]["requests"] == found["request_limit"] == 101
    assert len(server.rows) == 101 + found["warm_up_requests"]
    assert found["total"]["failures"] == 0
    assert 0 < found["total"]["rate_per_s"] == pytest.approx(101 / found["elapsed_s"])


def test_both_protocols_and_failures_count(server: Doubling) -> None:
    server.fail_every = 10
    ended = run(
        *("--grpc", server.grpc_address, "--rest", server.rest_url, "--users", "8", "--warm-up", "0"),
        *("--requests", "200", "--json"),
    )
    assert ended.returncode == 1
    total = json.loads(ended.stdout)["total"]
    assert len(server.rows) == total["requests"] == 200
    assert total["failures"] == 20


def test_fewer_requests_than_users_and_processes(server: Doubling) -> None:
    found = report(
        "--grpc", server.grpc_address, "--users", "8", "--processes", "2", "--requests", "1", "--warm-up", "0"
    )
    assert len(server.rows) == found["total"]["requests"] == 1


def test_the_duration_ends_a_run_before_its_requests(server: Doubling) -> None:
    server.service_s = 0.02
    options = ("--users", "2", "--requests", "100000", "--duration", "400ms", "--warm-up", "0")
    found = report("--grpc", server.grpc_address, *options)
    assert found["total"]["requests"] == len(server.rows) < 1000
    assert found["elapsed_s"] >= 0.4


def test_the_output_states_the_limit(server: Doubling) -> None:
    ended = run("--grpc", server.grpc_address, "--users", "2", "--requests", "50", "--warm-up", "0")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("Running for 50 requests: 2 users\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--requests", "0"], "is not in the range x>=1"),
        (["--rate", "10,20", "--requests", "5"], "needs --duration, which sets its length"),
        (["--rate", "10..20", "--requests", "5"], "needs --duration, which sets its length"),
    ],
)
def test_invalid_limits_are_usage_errors(arguments: list[str], complaint: str) -> None:
    ended = run("--grpc", "127.0.0.1:1", *arguments)
    assert ended.returncode == 2
    assert complaint in ended.stderr


SCENARIO = """
models:
  - {model: doubling, weight: 3, protocol: grpc}
  - {model: doubling, name: other, protocol: rest}
load: {users: 4, think_time: exponential(1ms), requests: 80, warm_up: 0}
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_scenario_sets_users_think_time_and_the_limit(server: Doubling, tmp_path: Path, processes: str) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(SCENARIO)
    addresses = ("--grpc", server.grpc_address, "--rest", server.rest_url)
    options = ("--scenario", str(path), *addresses, "--processes", processes, *BUSY_IS_FINE, "--json")
    ended = forked_command.run("tpuserve-loadtest", "run", *UNRECORDED, *options)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["load"] == "4 users, exponential think time 1 ms"
    assert found["total"]["requests"] == found["request_limit"] == len(server.rows) == 80
    # A rate on the command line replaces the users of the file, with their think time. The limit remains.
    replaced = forked_command.run("tpuserve-loadtest", "run", *UNRECORDED, *options, "--rate", "400")
    assert replaced.returncode == 0, replaced.stderr
    assert json.loads(replaced.stdout)["total"]["requests"] == len(server.rows) - 80 == 80


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("processes", [1, 2, 7])
def test_a_schedule_ends_with_the_last_request_of_the_limit(process: Process, processes: int) -> None:
    level = RateProfile.parse("200", UNLIMITED)
    limited = Load(UNLIMITED, 1.5, profile=level, process=process, requests=10_001)
    planned = Load(100, 1.5, profile=RateProfile.parse("200", 100), process=process)
    shares = [list(limited.instants(index, processes)) for index in range(processes)]
    merged = np.sort(np.concatenate(shares))
    assert (merged >= 1.5).sum() == 10_001
    assert merged.tolist() == list(planned.instants())[: len(merged)]
    assert limited.offered_per_s == 200


def test_shares_of_a_closed_load_follow_the_users() -> None:
    for users, processes, requests in ((3, 2, 101), (8, 3, 7), (1, 4, 10), (100, 7, 12_345)):
        load = Load(UNLIMITED, users=users, requests=requests)
        shares = [load.requests_of(index, processes) for index in range(processes)]
        assert sum(shares) == requests
        assert sum(load.users_of(index, processes) for index in range(processes)) == users
        for index, share in enumerate(shares):
            assert abs(share - requests * load.users_of(index, processes) / users) < 1


def test_windows_double_and_workers_of_different_length_merge() -> None:
    load = Load(UNLIMITED, 1.0, users=2, requests=1000)
    short, long = Recorder(("grpc",), load), Recorder(("grpc",), load)
    for number in range(500):
        short.record("grpc", 1 + number / 1000, 1.001 + number / 1000, None)
        long.record("grpc", 1 + number / 10, 1.05 + number / 10, None)
    assert len(short.windows) == 6  # the last response arrives at 0.5 s
    assert WINDOWS / 2 <= len(long.windows) <= WINDOWS
    merged = Recorder(("grpc",), load)
    for each in (long, short):
        merged.add_wire(each.to_wire())
    whole = Measured(load.lasting(50.0), merged, 50.0, (0.1,))
    assert whole.total.requests == 1000
    assert whole.rate_per_s == 20
    assert merged.windows[0].completed.total() == 500 + sum(0.05 + n / 10 < merged.window_s for n in range(500))


def test_responses_of_the_warm_up_do_not_count_towards_the_rate_of_a_limited_run() -> None:
    load = Load(UNLIMITED, 1.0, users=2, requests=10)
    recorder = Recorder(("grpc",), load)
    recorder.record("grpc", 0.9, 1.2, None)
    recorder.record("grpc", 1.0, 2.0, None)
    assert Measured(load.lasting(1.0), recorder, 1.0, (0.1,)).rate_per_s == 1


def test_a_gate_is_certain_by_the_number_of_requests() -> None:
    gates = (Threshold.parse("error_rate>1%"),)
    hopeless = Hopeless(gates, Load(UNLIMITED, users=4, requests=1000))
    assert hopeless.why(0.1, Counts(20, 10)) == ""
    assert "after 11 failures" in hopeless.why(0.1, Counts(20, 11))
