"""Tests for runs of recorded requests, each in a separate process."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.loadtests.recorded_logs import START_S, numbered, predict_entry, write_log
from tests.support import forked_command

# The runs share a small machine with other processes, and the tests are not about the generator's limits.
BUSY_IS_FINE = ("--generator-limit", "note")


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log of ten requests with one to ten rows in five seconds, sampled at a tenth."""
    entries = [predict_entry(numbered(n, rows=n + 1), START_S + n // 2, sampled=0.1) for n in range(10)]
    return write_log(tmp_path / "requests.jsonl", entries)


def loadtest(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", "run", *UNRECORDED, *arguments, *BUSY_IS_FINE)


def measured(run: forked_command.Ended) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads(run.stdout)
    return document


def test_recorded_requests_come_as_they_did_and_faster_if_that_is_asked(server: Doubling, log: Path) -> None:
    run = loadtest(
        MODEL, "--grpc", server.grpc_address, "--recorded", str(log), "--speed", "5", "--warm-up", "0", "--json"
    )
    report = measured(run)
    assert server.rows == list(range(1, 11))  # 100 ms apart, so none overtakes another
    assert report["total"]["requests"] == 10
    assert report["elapsed_s"] == pytest.approx(4.5 / 5)
    assert report["rows_per_request"] == 5.5
    (sample,) = [note for note in report["notes"] if "sample" in note]
    assert sample.startswith(
        "requests.jsonl is a sample of 10 %: with --speed 5, requests arrive at 0.5 of the real rate"
    )
    assert "--speed 10" in sample


def test_every_recorded_request_is_sent_once_however_many_processes_and_protocols_share_them(
    server: Doubling, log: Path
) -> None:
    addresses = ("--grpc", server.grpc_address, "--rest", server.rest_url)
    options = ("--recorded", str(log), "--speed", "5", "--warm-up", "0", "--processes", "2", "--json")
    report = measured(loadtest(MODEL, *addresses, *options))
    assert sorted(server.rows) == list(range(1, 11))
    # Requests with equal numbers of rows are a line of their protocol.
    for protocol in ("grpc", "rest"):
        assert sum(line["requests"] for name, line in report["lines"].items() if name.startswith(protocol)) == 5


def test_recorded_requests_come_at_a_rate_if_one_is_given(server: Doubling, log: Path) -> None:
    options = ("--rate", "40", "--arrivals", "constant", "--duration", "500ms", "--warm-up", "0")
    report = measured(loadtest(MODEL, "--grpc", server.grpc_address, "--recorded", str(log), *options, "--json"))
    assert report["total"]["requests"] == 20
    assert Counter(server.rows) == dict.fromkeys(range(1, 11), 2)


def test_a_scenario_merges_recordings_and_models_without_one_need_a_rate(server: Doubling, tmp_path: Path) -> None:
    for name, rows, start_s in (("one", 1, START_S), ("two", 2, START_S + 1)):
        write_log(tmp_path / f"{name}.tfrecord", [predict_entry(numbered(0, rows), start_s + n) for n in (0, 2)])
    path = tmp_path / "two.yaml"
    parts = [f"{{model: {MODEL}, name: {name}, recorded: {name}.tfrecord}}" for name in ("one", "two")]
    path.write_text(f"models: [{', '.join(parts)}]\nload: {{speed: 5, warm_up: 0}}")
    report = measured(loadtest("--scenario", str(path), "--grpc", server.grpc_address, "--json"))
    assert server.rows == [1, 2, 1, 2]
    assert {name: line["requests"] for name, line in report["lines"].items()} == {"one gRPC": 2, "two gRPC": 2}


@pytest.mark.parametrize(
    ("name", "entries", "arguments", "complaint"),
    [
        (
            "warm",
            [predict_entry(numbered(1))] * 2,
            [],
            "warm has no request times. Set the load with --rate",
        ),
        (
            "other.jsonl",
            [predict_entry(numbered(1), START_S, model="other")] * 2,
            [],
            "but none for doubling. Select the model",
        ),
        (
            "log.jsonl",
            [predict_entry({}, START_S)] * 2,
            [],
            "request 1: the model's inputs are ['x']; the recorded request has []",
        ),
        ("log.jsonl", [predict_entry(numbered(1), START_S)], [], "has only one request. Set the load"),
        (
            "log.jsonl",
            [predict_entry(numbered(1), START_S)] * 2,
            ["--rows", "3"],
            "--recorded contains complete requests",
        ),
        ("empty", [], [], "contains no predict request"),
    ],
)
def test_recordings_that_cannot_be_sent_are_exit_code_2_before_any_load(
    server: Doubling, tmp_path: Path, name: str, entries: list[Any], arguments: list[str], complaint: str
) -> None:
    path = write_log(tmp_path / name, entries)
    run = loadtest(MODEL, "--grpc", server.grpc_address, "--recorded", str(path), *arguments)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr
    assert server.rows == []


def test_requests_for_another_model_are_sent_if_that_is_said(server: Doubling, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", [predict_entry(numbered(1), model="old")])
    options = ("--recorded-model", "old", "--users", "1", "--duration", "300ms", "--warm-up", "0")
    run = loadtest(MODEL, "--grpc", server.grpc_address, "--recorded", str(path), *options, "--json")
    assert measured(run)["total"]["failures"] == 0
