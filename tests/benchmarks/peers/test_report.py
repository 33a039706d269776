import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.harness.load_tools import Load
from benchmarks.harness.process_tree import Memory
from benchmarks.peers.clients import Poisoned, Stall
from benchmarks.peers.measurement import Measured, Point
from benchmarks.peers.outcome import Outcome, Result, machine
from benchmarks.peers.report import BEGIN, END, cpu_ratio, insert, markdown, rate_ratio, turns_markdown
from benchmarks.peers.rotation import Rotation, Server, Turns


def point(wire: str, rate: int, failures: int = 0, cpu: float = 0.123) -> Point:
    load = Load(requests=rate * 2 + failures, failures=failures, elapsed_s=2.0, p50_ms=8, p99_ms=9, generator_cores=0)
    return Point(wire, load, cpu, dataclasses.replace(load, p50_ms=0.456))


def result(name: str, *points: Point, failed: int = 0) -> Result:
    measured = Measured(points, Memory(700, 600), Poisoned(465, failed, 31, 2), Stall(12, 3456, "413"))
    return Result(name, name.title(), "1.2", "at most 32", measured)


def outcome(*results: Result) -> Outcome:
    return Outcome("2026-11-21", "2 cores", 0.5, 5, results)


ONCE = "1.0\N{MULTIPLICATION SIGN}"
FOUND = outcome(
    result("tpuserve", point("infer_rest", 10_000), point("infer_grpc", 12_000), point("predict_rest", 9_000)),
    result("triton", point("infer_rest", 2_000), point("infer_grpc", 2_500, failures=7)),
    result("mlserver", point("infer_rest", 1_250, cpu=0.246), failed=99),
    result("litserve", point("row_rest", 900)),
    Result("ray", "Ray Serve", "2", "", None, problem="no namespace"),
)


def rows(text: str, start: str) -> list[list[str]]:
    """Return the cells of the table rows whose first cell is `start`."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [row for row in cells if row[0] == start]


def test_ratios_are_of_the_same_protocol() -> None:
    assert rate_ratio(FOUND, "triton", "infer_rest") == 5.0
    assert rate_ratio(FOUND, "triton", "infer_grpc") == 4.8
    assert cpu_ratio(FOUND, "mlserver", "infer_rest") == 2.0
    for ratio in (rate_ratio, cpu_ratio):
        assert ratio(FOUND, "mlserver", "infer_grpc") is None
        assert ratio(FOUND, "ray", "row_rest") is None
        assert ratio(outcome(result("triton", point("infer_rest", 2_000))), "triton", "infer_rest") is None


def test_a_server_with_its_own_protocol_is_compared_over_json() -> None:
    assert rate_ratio(FOUND, "litserve", "row_rest") == 10.0


def test_a_server_that_is_cheaper_has_a_ratio_with_two_decimals() -> None:
    cheaper = outcome(
        result("tpuserve", point("infer_rest", 10)), result("triton-c", point("infer_rest", 40, cpu=0.04))
    )
    assert rows(markdown(cheaper), "Triton-C")[0][-2:] == ["0.25\N{MULTIPLICATION SIGN}", "0.33\N{MULTIPLICATION SIGN}"]


def test_report_mentions_a_busy_machine() -> None:
    assert "Other processes" not in markdown(FOUND)
    assert "Other processes" in markdown(dataclasses.replace(FOUND, load_before=1.5))


def test_report_shows_load_isolation_and_batching() -> None:
    text = markdown(FOUND)
    load_grpc, load_rest, isolation, batching = rows(text, "Triton")
    assert load_rest == [
        "Triton",
        "OIP, HTTP, JSON",
        "2,000",
        "8.0",
        "9.0",
        "0.12",
        "0.46",
        "5.0\N{MULTIPLICATION SIGN}",
        ONCE,
    ]
    assert load_grpc[2] == "2,500, 7 failed"
    assert isolation == ["Triton", "700 MB (600)", "0 of 465", "2 of 31", "3,456 ms (12)", "413"]
    assert batching == ["Triton", "1.2", "at most 32"]
    assert "99 of 465" in text
    assert "Measured on 2026-11-21 on 2 cores" in text
    assert "Not measured: Ray Serve: no namespace" in text


def test_goals_at_their_limit_are_reached() -> None:
    text = markdown(FOUND)
    verdicts = {row[0]: row[3] for start in ("Triton", "Mlserver") for row in goal_rows(text, start)}
    assert verdicts == {
        "rate relative to Triton, OIP, HTTP, JSON": "reached",
        "rate relative to Triton, OIP, gRPC": "**missed**",
        "rate relative to Mlserver, OIP, HTTP, JSON": "reached",
    }


def goal_rows(text: str, title: str) -> list[list[str]]:
    return [row for name in ("OIP, HTTP, JSON", "OIP, gRPC") for row in rows(text, f"rate relative to {title}, {name}")]


def test_a_run_of_one_server_has_no_empty_table() -> None:
    assert "goal" not in markdown(outcome(result("kserve", point("infer_rest", 5))))


def test_report_includes_the_chart_if_given() -> None:
    assert "](images/peers.svg)" in markdown(FOUND, "images/peers.svg")
    assert "](" not in markdown(FOUND)


def test_prose_is_as_wide_as_the_documents() -> None:
    prose = [line for line in markdown(FOUND, "a.svg").splitlines() if not line.startswith(("|", "!"))]
    assert 80 < max(map(len, prose)) <= 120


def test_outcome_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "peers.json"
    FOUND.write(file)
    assert Outcome.read(file) == FOUND


@pytest.mark.parametrize("text", ["{}", "[]", '{"results": [{}]}', "no json"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json|Expecting"):
        Outcome.read(file)


def test_report_replaces_what_is_between_the_markers() -> None:
    document = f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    once = insert(document, "new\n")
    assert once == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nmore\n"
    assert insert(once, "new\n") == once
    with pytest.raises(ValueError, match="peers: begin"):
        insert("# Title\n", "new\n")


def turns(name: str, wire: str, *cpu_us: float) -> Turns:
    return Turns(name, wire, 32, (point(wire, 1_000).load,) * len(cpu_us), cpu_us)


def test_turns_are_compared_with_the_parent_and_with_triton_in_c_round_by_round(tmp_path: Path) -> None:
    memory = Memory(206.4, 180)
    servers = [Server(name, name.title(), "1.2", memory) for name in ("parent", "tpuserve", "triton-c")]
    rotation = Rotation(
        *("2026-11-28", "2 cores", 0.5, 2, tuple(servers)),
        (
            turns("tpuserve", "infer_grpc", 60.0, 130.0, 50.0),
            turns("triton-c", "infer_grpc", 30.0, 100.0, 20.0),
            turns("parent", "infer_grpc", 80.0, 200.0, 100.0),
            turns("tpuserve", "predict_grpc", 60.0, 60.0, 60.0),
        ),
    )
    text = turns_markdown(rotation)
    alone, parent, ours, triton = rows(text, "gRPC") + rows(text, "OIP, gRPC")
    assert alone[5:] == ["60.0 (60.0 to 60.0)", "", ""]
    times = "\N{MULTIPLICATION SIGN}"
    assert ours == [
        *("OIP, gRPC", "32", "Tpuserve", "1,000", "8.00", "60.0 (50.0 to 130.0)"),
        *(f"0.65{times}", f"2.00{times}"),
    ]
    assert [row[2] for row in (parent, triton)] == ["Parent", "Triton-C"]
    assert rows(text, "Triton-C") == [["Triton-C", "1.2", "206 MB (180)"]]
    rotation.write(tmp_path / "deep" / "turns.json")
    assert json.loads((tmp_path / "deep" / "turns.json").read_text())["turns"][1]["cpu_us"] == [30.0, 100.0, 20.0]


def test_machine_names_what_speeds_up_a_small_model() -> None:
    assert machine("flags : fpu avx512f amx_tile\n").endswith("cores (AVX512, AMX)")
    assert machine("flags : fpu avx2\n").endswith("cores")
