"""Tests for the report of the client benchmark."""

import io

import pytest
from rich.console import Console

from benchmarks.client.libraries import OWN, STUB
from benchmarks.client.report import Line, burst_lines, import_lines, prediction_lines, show, to_json
from benchmarks.client.turns import Burst, Load, Turn

GRPC = Load("grpc", "blocking", 1)
REST = Load("rest", "asyncio", 32)


def page(lines: list[Line]) -> str:
    output = io.StringIO()
    show(lines, Console(file=output, width=120))
    return output.getvalue()


def test_ratios_compare_turns_of_the_same_round() -> None:
    # The machine slows down between rounds. The ratio of the medians would be 1.25.
    costs = [(100.0, 140.0), (400.0, 560.0), (112.0, 90.0)]
    turns = [Turn(GRPC, library, cost) for raw, own in costs for library, cost in (("grpcio", raw), (OWN, own))]
    own, raw = prediction_lines(turns)
    assert (own.library, own.cpu_ms, own.is_met) == (OWN, 0.14, True)
    assert own.ratio == pytest.approx(1.4)
    assert (raw.library, raw.cpu_ms, raw.ratio, raw.is_met) == ("grpcio", 0.112, None, None)


def test_each_protocol_has_its_goal_and_the_stub_has_none() -> None:
    costs = [
        (GRPC, OWN, 160.0),
        (GRPC, "grpcio", 100.0),
        (GRPC, STUB, 200.0),
        (REST, OWN, 110.0),
        (REST, "httpx", 100.0),
    ]
    lines = prediction_lines([Turn(*cost) for cost in costs])
    assert [(line.library, line.goal, line.is_met) for line in lines] == [
        (OWN, 1.5, False),
        ("grpcio", None, None),
        (STUB, None, None),
        (OWN, 1.15, True),
        ("httpx", None, None),
    ]
    text = page(lines)
    assert "gRPC, blocking, 1 caller " in text
    assert "REST, asyncio, 32 callers" in text
    assert [word for word in text.split() if word in ("reached", "missed")] == ["missed", "reached"]


def test_cold_calls_are_compared_with_warm_calls_of_the_same_library() -> None:
    bursts = [Burst(OWN, 1500.0, 1000.0), Burst("httpx", 9000.0, 1000.0), Burst(OWN, 3000.0, 1000.0)]
    cold, warm, httpx_cold, _ = burst_lines(bursts, 1000)
    assert (cold.cpu_ms, cold.ratio, cold.goal, cold.is_met) == (2.25, 2.25, 2.0, False)
    assert (warm.cpu_ms, warm.ratio) == (1.0, None)
    assert (httpx_cold.ratio, httpx_cold.goal) == (9.0, None)


def test_imports_have_a_goal_in_milliseconds() -> None:
    lines = import_lines({"import tpuserve_client": [90.0, 160.0, 100.0], "import httpx": [300.0]})
    assert [(line.library, line.cpu_ms, line.is_met) for line in lines] == [(OWN, 100.0, True), ("httpx", 300.0, None)]
    assert "<= 150 ms" in page(lines)


def test_the_document_holds_the_verdicts() -> None:
    (document,) = to_json(import_lines({"import tpuserve_client": [200.0]}))
    assert document == {
        "section": "Import beyond numpy",
        "what": "import tpuserve_client",
        "library": OWN,
        "cpu_ms": 200.0,
        "ratio": None,
        "goal": 150.0,
        "is_met": False,
    }
