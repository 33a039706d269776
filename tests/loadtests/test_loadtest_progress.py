import io

import pytest
from rich.console import Console

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.rendering.progress import Progress

LOAD = Load(seconds=60, warm_up_s=10, users=32)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(width: int, *, terminal: bool, elapsed_s: float = 40.0) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=terminal)
    with Progress(LOAD, console, "Round 1 of 6, A, for") as progress:
        progress.tick(elapsed_s, Counts(12_345, 67))
    return written.getvalue()


def test_a_terminal_is_told_how_far_the_run_is() -> None:
    text = shown(120, terminal=True)
    assert "Round 1 of 6, A, for 70 s: 40.0 s  12,345 requests  412/s  67 failures  32 users" in text


def test_a_narrow_terminal_loses_what_was_asked_for_and_keeps_one_line() -> None:
    text = shown(72, terminal=True)
    assert "412/s  67 failures …" in text
    assert "\n" not in text.split("…")[0]


def test_what_warms_up_has_no_rate_yet() -> None:
    assert "5.0 s  warming up" in shown(120, terminal=True, elapsed_s=5.0)


def test_a_file_gets_one_line_at_the_start() -> None:
    assert shown(40, terminal=False) == "Round 1 of 6, A, for 70 s: 32 users\n"


def test_a_terminal_that_cannot_rewrite_its_line_gets_one_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown(40, terminal=True) == "Round 1 of 6, A, for 70 s: 32 users\n"
