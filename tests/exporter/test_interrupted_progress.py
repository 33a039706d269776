"""Tests for Ctrl-C while a live line is on the terminal: the next message starts on a new line."""

import io
import re
import signal
import threading
from collections.abc import Iterator

import pytest
from rich.console import Console

from tpuserve_exporter.reports.shown_progress import TerminalProgress, delayed_signals

_CONTROL = re.compile(r"\x1b\[\??\d*[A-Za-z]")
_HIDE, _SHOW, _UP, _ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[1A", "\x1b[2K"


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> Iterator[None]:
    """Let SIGINT interrupt, like at a terminal. Shells without one let background commands ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a terminal that can rewrite its line."""
    monkeypatch.setenv("TERM", "xterm-256color")


class InterruptedScreen(io.StringIO):
    """A terminal where Ctrl-C is pressed during write number `at` of the main thread, from 0."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at
        self.was_interrupted = False

    def write(self, text: str) -> int:
        written = super().write(text)
        if threading.current_thread() is threading.main_thread() and not self.was_interrupted:
            self._left -= 1
            if self._left < 0:
                self.was_interrupted = True
                signal.raise_signal(signal.SIGINT)
        return written

    def lines(self) -> list[str]:
        """Return the lines on the screen, including the line of the cursor."""
        shown, row, column = [""], 0, 0
        for part in re.split(f"({_CONTROL.pattern}|[\r\n])", self.getvalue()):
            if part == "\n":
                row, column = row + 1, 0
                shown += [""] * (row + 1 - len(shown))
            elif part == "\r":
                column = 0
            elif part == _UP:
                row -= 1
            elif part == _ERASE:
                shown[row] = ""
            elif not _CONTROL.fullmatch(part):
                shown[row] = shown[row][:column].ljust(column) + part
                column += len(part)
        return shown[: row + 1]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("at", range(7))
def test_what_follows_an_interrupted_step_has_its_own_line(at: int, fails: bool) -> None:
    screen = InterruptedScreen(at)
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    progress = TerminalProgress(console, verbose=True)
    try:
        with progress.step("Write warm-up requests") as step:
            step.advance(1, 2)
            progress.warn("weights of NaN")
            if fails:
                raise OSError
    except (KeyboardInterrupt, OSError):
        pass
    *message, last = screen.lines()
    assert last == ""
    assert sum(line.startswith(("✓ Write", "✗ Write")) for line in message) == 1, message
    assert not any(line.startswith("⠋") for line in message), message
    assert screen.getvalue().rfind(_SHOW) > screen.getvalue().rfind(_HIDE)


def test_a_dumb_terminal_gets_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = InterruptedScreen(100)
    progress = TerminalProgress(Console(file=screen, force_terminal=True, width=100), verbose=True)
    with progress.step("Write warm-up requests") as step:
        step.advance(1, 2)
        progress.warn("weights of NaN")
    assert re.fullmatch("! weights of NaN\n✓ Write warm-up requests [0-9.]+ s\n", screen.getvalue())


def test_an_interruption_takes_effect_when_the_body_has_ended() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), delayed_signals():  # noqa: PT012 - that the body ends is what is shown
        signal.raise_signal(signal.SIGINT)
        done.append("drawn")
    assert done == ["drawn"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_failure_within_is_told_as_it_is() -> None:
    with pytest.raises(OSError, match="no terminal"), delayed_signals():
        raise OSError("no terminal")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_threads_that_are_never_interrupted_hold_nothing() -> None:
    seen = []

    def draw() -> None:
        with delayed_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
