"""Test for the whole demo, which new users run first."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "examples/digits/demo.py", "--work"]


@pytest.mark.slow
def test_the_demo_trains_exports_serves_predicts_measures_and_stops(tmp_path: Path) -> None:
    run = subprocess.run([*DEMO, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    accuracies = [float(text) for text in re.findall(r"accuracy on 450 held-out digits: ([0-9.]+)", run.stdout)]
    exported = re.search(r"accuracy: ([0-9.]+) over 450 row\(s\) of held_out.npz, expected >= 0.95", run.stdout)
    assert exported is not None, run.stdout
    by_protocol = accuracies[-2:]
    assert len(by_protocol) == 2
    assert min(by_protocol) >= 0.95
    assert "exited with status 0" in run.stdout
    assert re.search(r"total .* 0 ", run.stdout), "the load test's table, without failures"


@pytest.mark.slow
def test_an_interrupted_demo_reports_it_and_keeps_other_files(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.write_text("mine")
    with subprocess.Popen([*DEMO, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        while b"== Train" not in demo.stdout.readline():
            pass
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=180)
    assert demo.returncode == 130
    assert b"Interrupted" in errors
    assert keep.read_text() == "mine"


class Terminal:
    """A program in a terminal of its own. `output` is what the terminal has shown so far."""

    def __init__(self, *arguments: str) -> None:
        self._side, theirs = pty.openpty()
        # The session's first terminal becomes its controlling one, so that Ctrl-C reaches the program.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *arguments], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up, which ends a program that still runs, and its server."""
        os.close(self._side)
        self.process.wait(60)

    def read_until(self, text: str) -> None:
        """Read until the terminal has shown `text`. Fail if the program ends before."""
        while text not in self.output:
            assert self._read(), self.output

    def press_ctrl_c(self) -> int:
        """Press the keys, read until the program ends, and return its status."""
        os.write(self._side, b"\x03")
        while self._read():
            pass
        return self.process.wait(60)

    def _read(self) -> bool:
        try:
            part = os.read(self._side, 65536)
        except OSError:  # Linux reports the end of a terminal so
            return False
        self.output += part.decode(errors="replace").replace("\r\n", "\n")
        return bool(part)


LAST_LINE_OF_THE_COMMANDS = "\nEOF\n"


def type_printed_commands(output: str) -> str:
    """Type the first command of the output, and those for a second terminal, into a shell. Return what it prints."""
    first = next(line for line in output.splitlines() if line.startswith("$ "))
    calls = output[output.index("$ curl") :].partition(LAST_LINE_OF_THE_COMMANDS)
    script = re.sub(r"^\$ ", "", f"{first}\n{''.join(calls[:2])}", flags=re.MULTILINE)
    path = "/usr/local/bin:/usr/bin:/bin"
    typed = subprocess.run(
        ["sh", "-eu"], input=script, env={"PATH": path}, capture_output=True, text=True, timeout=120, check=False
    )
    assert typed.returncode == 0, script + typed.stdout + typed.stderr
    return typed.stdout


def open_console(output: str) -> int:
    page = re.search(r"in a browser: (http\S+/console)\n", output)
    assert page is not None, output
    with urllib.request.urlopen(page[1], timeout=30) as response:
        status: int = response.status
    return status


@pytest.mark.slow
def test_in_a_terminal_the_server_stays_and_can_be_started_again_at_once(tmp_path: Path) -> None:
    with Terminal(*DEMO, str(tmp_path)) as demo:
        demo.read_until(LAST_LINE_OF_THE_COMMANDS)
        assert open_console(demo.output) == 200
        shown = type_printed_commands(demo.output)
        assert '"predictions":[[' in shown, shown
        assert "AVAILABLE" in shown
        assert re.search(r"\[[\d ]{15}\] \[[\d ]{15}\]", shown), shown
        assert demo.press_ctrl_c() == 0, demo.output
        assert "exited with status 0" in demo.output

    grpc, rest = (str(port) for port in free_ports(2))
    with Terminal(*DEMO, str(tmp_path), "--serve", "--grpc-port", grpc, "--port", rest) as again:
        again.read_until(LAST_LINE_OF_THE_COMMANDS)
        assert "== Train" not in again.output
        assert f"http://127.0.0.1:{rest}/console" in again.output
        assert open_console(again.output) == 200
        assert "AVAILABLE" in type_printed_commands(again.output)
        assert again.press_ctrl_c() == 0, again.output


def test_a_taken_port_is_reported_before_the_training_with_free_ones(tmp_path: Path) -> None:
    [free] = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        serve = [*DEMO, str(tmp_path), "--serve", "--grpc-port", str(free), "--port", str(taken)]
        run = subprocess.run(serve, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert (
        f"Error: Cannot listen on port {taken}: Address already in use. Choose another one, such as: make serve PORT="
        in (run.stderr)
    )
    assert "==" not in run.stdout
