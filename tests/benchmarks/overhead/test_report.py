import io
import json

import pytest
from rich.console import Console

from benchmarks.harness.load_tools import Load
from benchmarks.harness.measurement import Point, Served
from benchmarks.harness.process_tree import Memory
from benchmarks.harness.targets import Protocol
from benchmarks.overhead.handshakes import HandshakePoint
from benchmarks.overhead.loop_time import WIRES, LoopPart, LoopTime, measure_loop
from benchmarks.overhead.overhead import compare_counts
from benchmarks.overhead.report import Goal, Outcome, as_json, goals, print_outcome


def point(kind: str, protocol: Protocol, in_flight: int, rate: int, cpu: float, p50: float = 1.0) -> Point:
    load = Load(requests=rate * 2, failures=0, elapsed_s=2.0, p50_ms=p50, p99_ms=9.0, generator_cores=0.5)
    return Point(kind, protocol, in_flight, load, cpu)


def outcome(*points: Point, memory: Memory | None = None) -> Outcome:
    loop = LoopTime("gRPC", (LoopPart("host", 10.0, 0.25), LoopPart("core", 30.0, 0.75)), 40.0, 5.0)
    return Outcome(2, 2, 0.5, points, memory, ("something odd",), loops=(loop,))


def goal(found: Outcome, start: str) -> Goal:
    (match,) = [goal for goal in goals(found) if goal.name.startswith(start)]
    return match


def test_goals_compare_the_right_points_and_take_the_limit_as_reached() -> None:
    found = outcome(
        point("server", "grpc", 32, 9000, 0.15),
        point("echo", "grpc", 32, 30000, 0.03),
        point("server", "rest", 32, 9000, 0.10),
        point("server", "grpc", 1, 1000, 0.5, p50=0.9),
        memory=Memory(299.0, 700.0),
    )
    assert goal(found, "grpc, CPU").reached
    assert goal(found, "rest, CPU").reached is False
    assert goal(found, "grpc, p50").reached is False
    assert goal(found, "RSS").reached
    assert goal(found, "rest, p50").reached is None


def test_a_hit_of_the_cache_is_compared_with_a_run_of_the_same_load() -> None:
    found = outcome(
        point("server", "grpc", 32, 9000, 0.20),
        point("cache", "grpc", 32, 19000, 0.08),
        point("cache", "rest", 32, 19000, 0.08),
    )
    assert goal(found, "CPU of a cache hit relative to a run, grpc, 32").got == pytest.approx(0.4)
    assert goal(found, "CPU of a cache hit relative to a run, rest, 32").got is None
    written = io.StringIO()
    print_outcome(found, Console(width=200, file=written))
    (row,) = [line for line in written.getvalue().splitlines() if "9,000" in line and "grpc" in line]
    assert "0.40" in row


def test_tables_show_each_point_beside_its_echo() -> None:
    found = outcome(point("server", "grpc", 32, 9000, 0.12), point("echo", "grpc", 32, 30000, 0.03))
    written = io.StringIO()
    console = Console(width=160, file=written)
    print_outcome(found, console)
    text = written.getvalue()
    (row,) = [line for line in text.splitlines() if "9,000" in line]
    assert "30,000" in row
    assert "0.30" in row  # relative to the echo's rate
    assert "4.00" in row  # relative to the echo's CPU time
    assert "not measured" in text
    assert "warning: something odd" in text


def test_an_ensemble_is_compared_with_its_dearer_step() -> None:
    found = outcome(point("server", "grpc", 32, 9000, 0.12), point("ensemble", "grpc", 32, 7200, 0.15))
    written = io.StringIO()
    print_outcome(found, Console(width=160, file=written))
    [row] = [line for line in written.getvalue().splitlines() if "7,200" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        *("grpc", "32", "7,200", "1.00", "0.150", "9,000", "1.00", "0.120", "0.80", "1.25"),
    ]
    name = "CPU of a two-step ensemble relative to its dearer step, grpc"
    assert (goal(found, name).got, goal(found, name).reached) == (0.15 / 0.12, True)


def test_json_holds_every_figure() -> None:
    found = outcome(point("server", "rest", 1, 100, 0.2), memory=Memory(500.0, 400.0))
    document = json.loads(json.dumps(as_json(found)))
    assert document["points"][0]["rate_per_s"] == 100
    assert document["points"][0]["load"]["p99_ms"] == 9.0
    assert document["memory"] == {"rss_mb": 500.0, "pss_mb": 400.0}
    assert len(document["goals"]) == len(goals(found))
    assert document["loops"][0]["parts"][1] == {"name": "core", "cpu_us": 30.0, "share": 0.75}


def test_a_server_that_counted_fewer_successes_than_the_tools_is_reported() -> None:
    points = [point("server", "grpc", 32, 500, 0.1), point("echo", "grpc", 32, 9000, 0.1)]
    before: dict[Protocol, Served] = {"grpc": Served(10, 0)}
    fine: dict[Protocol, Served] = {
        "grpc": Served(10 + 1000 + 400, 128)
    }  # warm-up, measured requests and interrupted last requests
    assert list(compare_counts(before, fine, points)) == []
    short: dict[Protocol, Served] = {"grpc": Served(10 + 999, 0)}
    assert "the load generators counted 1000 successes, the server 999" in next(compare_counts(before, short, points))
    failing: dict[Protocol, Served] = {"grpc": Served(10 + 1400, 129)}
    assert "129 failures" in next(compare_counts(before, failing, points))


def test_tls_is_compared_with_the_same_load_in_the_clear() -> None:
    points = (
        point("server", "grpc", 32, 9000, 0.10),
        point("tls", "grpc", 32, 7500, 0.12),
        point("tls", "rest", 32, 7500, 0.12),
    )
    handshakes = (
        HandshakePoint("server", "grpc", 100, 5000.0, 0.05),
        HandshakePoint("tls", "grpc", 100, 400.0, 0.55),
    )
    found = Outcome(2, 2, 0.5, points, None, (), handshakes=handshakes)
    reached = goal(found, "CPU of a request over TLS relative to plain, grpc")
    assert reached.got == pytest.approx(1.2)
    assert reached.reached
    assert goal(found, "CPU of a request over TLS relative to plain, rest").reached is None
    console = Console(file=io.StringIO(), width=200)
    print_outcome(found, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]  # the file above
    rows = [line.split("│")[1:-1] for line in printed.splitlines() if line.startswith("│ grpc")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert ["grpc", "32", "7,500", "1.00", "0.120", "9,000", "1.00", "0.100", "0.83", "1.20"] in cells
    assert ["grpc", "400", "0.550", "0.050"] in cells
    assert as_json(found)["handshakes"][1]["kind"] == "tls"  # type: ignore[index]  # JSON


def test_loop_time_is_divided_among_the_parts() -> None:
    loops = measure_loop(rounds=2, requests=50)
    assert [found.wire for found in loops] == [wire.title for wire in WIRES]
    for found in loops:
        assert [part.name for part in found.parts][:2] == ["event loop", "host"]
        assert sum(part.cpu_us for part in found.parts) == pytest.approx(found.loop_us)
        assert sum(part.share for part in found.parts) == pytest.approx(1.0)
    console = Console(width=200, file=io.StringIO())
    print_outcome(Outcome(2, 2, 0.5, (), None, (), loops=loops), console)
    assert isinstance(console.file, io.StringIO)
    assert "device thread" in console.file.getvalue()
