"""Tests for the subcommands that other distributions add."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tpuserve_client.cli import main
from tpuserve_client.cli.companion import COMPANIONS, Companion, find_program

COMMAND = [sys.executable, "-c", "from tpuserve_client.cli import main; main()"]


def install(directory: Path, name: str, body: str) -> Path:
    """Write an executable shell script."""
    program = directory / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def no_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a Python without executables in its directory, and set PATH to one empty directory."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_help_lists_every_command_with_a_line() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for companion in COMPANIONS:
        assert f"{companion.name}" in result.output
        assert companion.summary in result.output
    assert "predict" in result.output
    assert "status" in result.output


@pytest.mark.parametrize("companion", COMPANIONS, ids=lambda companion: companion.name)
@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "--b=c"]])
@pytest.mark.usefixtures("no_neighbours")
def test_missing_companion_says_what_to_install(companion: Companion, arguments: list[str]) -> None:
    result = CliRunner().invoke(main, [companion.name, *arguments])
    assert result.exit_code == 127
    assert f"pip install {companion.requirement}\n" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("typed", "nearest"), [("predit", "predict"), ("exprot", "export"), ("server", "serve"), ("load", "loadtest")]
)
def test_unknown_command_names_the_nearest(typed: str, nearest: str) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2
    assert f"Did you mean '{nearest}'?" in result.stderr


def test_unknown_command_like_no_other_is_just_unknown() -> None:
    result = CliRunner().invoke(main, ["xyzzy"])
    assert result.exit_code == 2
    assert "Unknown command 'xyzzy'." in result.stderr
    assert "Did you mean" not in result.stderr


def test_program_beside_this_python_comes_before_path(no_neighbours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = install(no_neighbours, "tpuserve-serve", "true")
    assert find_program("tpuserve-serve") == str(on_path)
    (no_neighbours / "bin").mkdir()
    beside = install(no_neighbours / "bin", "tpuserve-serve", "true")
    monkeypatch.setattr(sys, "executable", str(no_neighbours / "bin" / "python"))
    assert find_program("tpuserve-serve") == str(beside)


def from_path_only(directory: Path) -> list[str]:
    """Return the command for a Python with no other executables in its directory.

    It must search `directory` on PATH.
    """
    program = (
        f"import sys; sys.executable = {str(directory / 'python')!r}; from tpuserve_client.cli import main; main()"
    )
    return [sys.executable, "-c", program]


def test_companion_gets_every_argument_and_its_exit_code_is_the_commands(tmp_path: Path) -> None:
    install(tmp_path, "tpuserve-export", 'for a in "$@"; do echo "<$a>"; done; exit 7')
    command = [*from_path_only(tmp_path), "export", "--help", "a b", "--flag=1", "--", "-x"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 7
    assert result.stdout.splitlines() == ["<--help>", "<a b>", "<--flag=1>", "<-->", "<-x>"]


def test_companion_takes_the_commands_place_so_signals_reach_it(tmp_path: Path) -> None:
    install(tmp_path, "tpuserve-serve", "trap 'echo drained; exit 0' TERM; echo $$; while :; do read line; done")
    with subprocess.Popen(
        [*from_path_only(tmp_path), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate("\n")
    assert output == "drained\n"
    assert process.returncode == 0
