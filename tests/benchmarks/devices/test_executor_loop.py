"""Tests for the benchmark of the executor, on the CPU."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.devices.executor_loop import Case, main
from benchmarks.devices.program_loop import calls_per_second
from tests.support.device_programs import double_and_add, write_programs


def test_executor_and_loop_are_measured_at_each_size_with_one_and_two_calls_in_flight(tmp_path: Path) -> None:
    write_programs(tmp_path / "1", double_and_add(), batch_sizes=(1, 4))
    done = CliRunner().invoke(
        main, ["--base", str(tmp_path), "--rows", "1,4", "--rounds", "2", "--seconds", "0.01", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["device"] == "cpu"
    assert [(case["rows"], case["in_flight"]) for case in found["cases"]] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert all(len(case[way]) == 2 and min(case[way]) > 0 for case in found["cases"] for way in ("executor", "loop"))


def test_sizes_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--base", str(tmp_path), "--rows", "1,many"])
    assert done.exit_code == 2
    assert "'1,many' is not a list of numbers" in done.output


def test_the_ratio_is_that_of_the_medians() -> None:
    assert Case(1, 1, [1.0, 3.0, 9.0], [4.0, 4.0, 1.0]).ratio == 0.75


@pytest.mark.parametrize("in_flight", [1, 2])
def test_calls_finish_in_order_with_at_most_so_many_started(in_flight: int) -> None:
    started: list[int] = []
    finished: list[int] = []

    def start() -> int:
        started.append(len(started))
        return started[-1]

    def finish(call: int) -> None:
        finished.append(call)
        assert len(started) - len(finished) < in_flight

    assert calls_per_second(start, finish, 0.001, in_flight) > 0
    assert finished == started
