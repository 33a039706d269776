import io

import pytest
from rich.console import Console

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.rendering.terminal import Progress
from tpuserve_loadtests.statistics.live_latencies import LiveLatencyRecorder

LOAD = Load(seconds=60, warm_up_s=10, users=32)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def counts(requests: int, failures: int = 0, latency_ms: float = 4.0) -> Counts:
    recorder = LiveLatencyRecorder()
    for _ in range(requests - failures):
        recorder.record(1000 * latency_ms)
    return Counts(requests, failures, latencies=recorder.state())


def shown(width: int, *ticks: tuple[float, Counts], terminal: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=terminal)
    with Progress(LOAD, console, "Round 1 of 6, A, for") as progress:
        for elapsed_s, at in ticks:
            progress.tick(elapsed_s, at)
    return written.getvalue()


def test_a_terminal_shows_rate_and_latencies() -> None:
    text = shown(140, (40.0, counts(12_345, 67)), terminal=True)
    words = "409/s  p50 3.98 ms  p99 3.98 ms  67 failures  12,345 requests  32 users"
    assert f"Round 1 of 6, A, for 70 s: 40.0 s  {words}" in text


def test_a_terminal_shows_the_last_five_seconds() -> None:
    before, stall = counts(1000), counts(1000) + counts(5, latency_ms=800)
    text = shown(140, (20.0, before), (25.0, stall), terminal=True)
    assert "20.0 s  100/s  p50 3.98 ms  p99 3.98 ms" in text
    assert "25.0 s  1/s  p50 803 ms  p99 803 ms  0 failures  1,005 requests" in text


def test_a_period_without_successes_has_no_latency() -> None:
    assert "0/s  p50 -  p99 -  9 failures" in shown(140, (20.0, counts(9, 9)), terminal=True)


def test_a_narrow_terminal_cuts_the_line_at_its_end() -> None:
    text = shown(72, (40.0, counts(12_345, 67)), terminal=True)
    assert "409/s  p50 3.98 ms  p99 3.98 ms  67 …" in text
    assert "\n" not in text.split("…")[0]


def test_a_warm_up_has_no_figures() -> None:
    assert "5.0 s  warming up" in shown(120, (5.0, Counts()), terminal=True)


def test_a_file_gets_a_line_at_the_start_and_every_ten_seconds() -> None:
    ticks = [(10.0 + second, counts(100 * second, latency_ms=2)) for second in range(31)]
    lines = shown(40, *ticks, terminal=False).splitlines()
    assert lines == [
        "Round 1 of 6, A, for 70 s: 32 users",
        *(
            f"  {10 + second} s  100/s  p50 1.99 ms  p99 1.99 ms  0 failures  {100 * second:,} requests"
            for second in (10, 20, 30)
        ),
    ]


def test_a_long_run_prints_fewer_lines_as_it_goes_on() -> None:
    ticks = [(10.0 + second, Counts(second)) for second in range(0, 14_400, 5)]
    lines = shown(40, *ticks, terminal=False).splitlines()
    assert 80 < len(lines) < 150


def test_a_terminal_that_cannot_rewrite_its_line_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = shown(40, (11.0, counts(10)), (20.0, counts(100)), terminal=True)
    assert text.startswith("Round 1 of 6, A, for 70 s: 32 users\n  20 s  10/s")
