"""Tests for the report of the codec benchmarks."""

import io

from rich.console import Console

from benchmarks.codecs.report import CodecCost, CodecTable, show, to_json

TABLE = CodecTable("images", "ms", [CodecCost("fast", 0.5, 5.0, goal=1.0), CodecCost("slow", 2.0, 1.0, goal=1.0)])


def test_a_goal_is_judged_and_the_ratio_is_to_the_plain_way() -> None:
    output = io.StringIO()
    show([TABLE], Console(file=output, width=100))
    fast, slow = [line for line in output.getvalue().splitlines() if "fast" in line or "slow" in line]
    assert "10.0" in fast
    assert "reached" in fast
    assert "missed" in slow


def test_the_document_holds_the_same() -> None:
    (document,) = to_json([TABLE])
    assert document["unit"] == "ms"
    assert document["costs"] == [
        {"what": "fast", "here": 0.5, "plainly": 5.0, "ratio": 10.0, "goal": 1.0},
        {"what": "slow", "here": 2.0, "plainly": 1.0, "ratio": 0.5, "goal": 1.0},
    ]
