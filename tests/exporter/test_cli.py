"""Tests for the command as users start it: fast help, quiet, interruptible, and readable on a terminal."""

import io
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from rich.console import Console

from tests.exporter.conftest import Finished
from tpuserve_exporter.command.exporting import SECTIONS, command
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.reports.shown_progress import NotebookProgress, PlainProgress, TerminalProgress
from tpuserve_exporter.reports.summary import print_success
from tpuserve_exporter.stages.job import Exported
from tpuserve_exporter.terms.signature import Signature, TensorSpec
from tpuserve_exporter.version.manifest import describe_signature
from tpuserve_formats.manifest.version import Manifest, ManifestCpu, ManifestParity, ManifestSource

COMMAND = Path(sys.executable).with_name("tpuserve-export")
TINY = ("--model", "tests.exporter.builders:tiny")


def test_help_names_the_command_as_users_call_it_and_every_exit_code() -> None:
    done = subprocess.run([COMMAND, "--help"], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("Usage: tpuserve export [OPTIONS] SOURCE OUT_BASE")
    assert "tpuserve export checkpoints/ models/digits --model examples.digits.model:build" in done.stdout
    codes = [line.split()[0] for line in done.stdout.split("Exit codes:")[1].splitlines() if line.startswith("    ")]
    assert codes == [*map(str, range(15)), "130"]


def test_help_lists_every_option_in_one_section() -> None:
    options = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(options) == sorted(one.name or "" for one in command.params if isinstance(one, click.Option))
    done = subprocess.run([COMMAND, "--help"], capture_output=True, encoding="utf-8", check=True)
    headings = [line.removesuffix(":") for line in done.stdout.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == [*SECTIONS, "Help"]


def test_help_does_not_wait_for_tensorflow() -> None:
    look = "import sys, tpuserve_exporter.command.exporting; print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.slow
@pytest.mark.xdist_group(__name__)
def test_an_export_is_quiet_but_for_its_own_lines(tiny_checkpoint: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command: list[str | Path] = [COMMAND, tiny_checkpoint, tmp_path / "tiny", *TINY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Start TensorFlow (")
    assert "Published version 1\n" in done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group(__name__)
def test_a_terminated_export_cleans_up(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Stop an export while it has a hidden directory: the builder's model never finishes tracing."""
    base = tmp_path / "tiny"
    stuck = ("--model", "tests.exporter.builders:stuck", "--allow-unused", "*")
    with subprocess.Popen(
        [COMMAND, tiny_checkpoint, base, *stuck], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert any(line == b"tracing for ever\n" for line in run.stdout)
        assert base.exists()
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate()
    assert run.returncode == 130
    assert errors.decode().strip() == "interrupted"
    assert not base.exists()


@pytest.mark.slow
@pytest.mark.xdist_group(__name__)
def test_a_killed_export_leaves_nothing_that_a_server_sees_and_the_next_removes_it(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    base = tmp_path / "tiny"
    stuck = ("--model", "tests.exporter.builders:stuck", "--allow-unused", "*")
    with subprocess.Popen([COMMAND, tiny_checkpoint, base, *stuck], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert any(line == b"tracing for ever\n" for line in run.stdout)
        run.kill()
    assert run.returncode == -signal.SIGKILL
    (left,) = base.iterdir()
    assert left.name.startswith(".")  # servers load only numbered directories
    assert export(tiny_checkpoint, base, *TINY, "--batch-sizes", "1").code == 0
    assert [path.name for path in base.iterdir()] == ["1"]


def test_terminal_shows_steps_and_a_panel() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    progress = TerminalProgress(console, verbose=True)
    with progress.step("Publish") as step:
        step.detail = "models/digits/1: float32[?, 2], a path of [bold] parts"
    progress.warn("the source's own warm-up requests: [/]")
    with pytest.raises(KeyError), progress.step("Break [/red]"):
        raise KeyError
    print_success(console, _exported(), 1.5, 2)
    shown = screen.getvalue()
    assert "✓ Publish" in shown
    assert ": models/digits/1" in shown
    assert "! the source's own warm-up requests: [/]" in shown
    assert "float32[?, 2], a path of [bold] parts" in shown
    assert "✗ Break [/red]" in shown
    assert "Published version 3" in shown
    for name in ("first", "second"):
        assert f"{name}(x: float32[?, 2]) -> y: float32[?, 2]" in shown


class StepClock:
    """A clock that advances by the next of `seconds` at every second reading: from the start of a step to its end."""

    def __init__(self, *seconds: float) -> None:
        self._readings = itertools.chain.from_iterable((0.0, taken) for taken in seconds)

    def __call__(self) -> float:
        return next(self._readings)


@pytest.mark.parametrize(("verbose", "shown"), [(False, ["slow"]), (True, ["quick", "slow"])])
def test_quick_steps_leave_a_line_only_where_all_are_asked_for(
    verbose: bool, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    cell = [""]
    for progress in (
        PlainProgress(StepClock(0.4, 3.0), verbose=verbose),
        TerminalProgress(console, StepClock(0.4, 3.0), verbose=verbose),
        NotebookProgress(cell.append, StepClock(0.4, 3.0), verbose=verbose),
    ):
        for title in ("quick", "slow"):
            with progress.step(title):
                pass
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == shown
    assert re.findall(r"✓ (\w+)", screen.getvalue()) == shown
    assert re.findall(r"[✓…] (\w+)", cell[-1]) == shown


def test_a_quick_step_that_fails_has_a_line_on_a_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with pytest.raises(KeyError), TerminalProgress(console, StepClock(0.4)).step("Compare"):
        raise KeyError
    assert "✗ Compare" in screen.getvalue()


@pytest.mark.parametrize(
    ("published", "again"), [(True, ""), (False, "  to publish it again: add --again, or --version 4\n")]
)
def test_an_export_ends_with_what_to_do_next(published: bool, again: str) -> None:
    screen = io.StringIO()
    print_success(Console(file=screen), replace(_exported(), published=published), 1.5, 12)
    assert screen.getvalue().endswith(
        f"{again}  to serve it: tpuserve serve --model_name=digits --model_base_path=models/digits\n"
    )
    assert "  time: 1.5 s in 12 steps (--verbose shows each)\n" in screen.getvalue()


def _exported() -> Exported:
    spec = TensorSpec("float32", (None, 2))
    signatures = {name: Signature(name, {"x": spec}, {"y": spec}) for name in ("first", "second")}
    manifest = Manifest(
        exporter_version="0.1.0",
        created_at="2026-01-01T00:00:00Z",
        source=ManifestSource(kind="keras", name="m.keras"),
        compute_dtype="float32",
        cpu=ManifestCpu(allow_bfloat16_kernels=False),
        signatures={
            name: describe_signature(one, {"x": np.zeros((4, 2), np.float32)}, (1, 2), True, SequenceOptions())
            for name, one in signatures.items()
        },
        parity=ManifestParity(max_abs_difference=0.0, atol=0.0, rtol=0.0, rows=2),
        files={},
    )
    return Exported("digits", 3, Path("models/digits/3"), manifest, signatures, None, 4, ())


def test_the_working_directory_is_importable_for_builders_alone(tmp_path: Path) -> None:
    """Check that a module in the user's directory cannot shadow the exporter's modules before the builder's import."""
    (tmp_path / "rich.py").write_text("raise SystemExit('imported what nobody named')")
    done = subprocess.run(
        [COMMAND, "--help"], cwd=tmp_path, env=os.environ.copy(), capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
