"""Tests for the subcommands, which programs of other distributions run."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tpuserve_command.group import tpuserve
from tpuserve_command.subcommands import SUBCOMMANDS, Subcommand

COMMAND = Path(sys.prefix) / "bin" / "tpuserve"


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


def alone(directory: Path, *arguments: str) -> list[str]:
    """Return a `tpuserve` command of a Python with no other executables in its directory.

    It must search `directory` on PATH.
    """
    program = (
        f"import sys; sys.executable = {str(directory / 'python')!r}; "
        "from tpuserve_command.programs import tpuserve; tpuserve()"
    )
    return [sys.executable, "-c", program, *arguments]


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command_with_a_line(option: str) -> None:
    result = CliRunner().invoke(tpuserve, [option])
    assert result.exit_code == 0
    for subcommand in SUBCOMMANDS.values():
        assert f"  {subcommand.name}" in result.output
        assert subcommand.summary in result.output
    assert "Not installed" not in result.output


def test_help_separates_commands_to_install(no_neighbours: Path) -> None:
    install(no_neighbours, "tpuserve-status", "true")
    installed, missing = CliRunner().invoke(tpuserve, ["--help"]).output.split("Not installed:\n")
    assert installed.partition("Commands:\n")[2].split()[0] == "status"
    assert "  serve     pip install 'tpuserve-server[tensorflow]'\n" in missing
    assert "status" not in missing


@pytest.mark.parametrize("subcommand", SUBCOMMANDS.values(), ids=SUBCOMMANDS)
def test_every_program_accepts_both_help_options(subcommand: Subcommand) -> None:
    short, long = (
        subprocess.run([COMMAND, subcommand.name, option], capture_output=True, text=True, check=True).stdout
        for option in ("-h", "--help")
    )
    assert short == long
    assert short.startswith(f"Usage: tpuserve {subcommand.name}")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "--b=c"]])
@pytest.mark.parametrize("name", ["serve", "predict"])
def test_missing_subcommand_says_what_to_install(name: str, arguments: list[str], tmp_path: Path) -> None:
    command = alone(tmp_path, name, *arguments)
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)})
    assert result.returncode == 127
    assert f"pip install {SUBCOMMANDS[name].requirement}\n" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("typed", "nearest"), [("predit", "predict"), ("exprot", "export"), ("server", "serve"), ("load", "loadtest")]
)
def test_unknown_command_names_the_nearest(typed: str, nearest: str) -> None:
    result = CliRunner().invoke(tpuserve, [typed])
    assert result.exit_code == 2
    assert f"Did you mean '{nearest}'?" in result.stderr


def test_unknown_command_like_no_other_is_just_unknown() -> None:
    result = CliRunner().invoke(tpuserve, ["xyzzy"])
    assert result.exit_code == 2
    assert "Unknown command 'xyzzy'." in result.stderr
    assert "Did you mean" not in result.stderr


def test_program_beside_this_python_comes_before_path(no_neighbours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = install(no_neighbours, "tpuserve-serve", "true")
    assert SUBCOMMANDS["serve"].find() == str(on_path)
    (no_neighbours / "bin").mkdir()
    beside = install(no_neighbours / "bin", "tpuserve-serve", "true")
    monkeypatch.setattr(sys, "executable", str(no_neighbours / "bin" / "python"))
    assert SUBCOMMANDS["serve"].find() == str(beside)


def test_program_gets_every_argument_and_its_exit_code_is_the_commands(tmp_path: Path) -> None:
    install(tmp_path, "tpuserve-export", 'for a in "$@"; do echo "<$a>"; done; exit 7')
    command = alone(tmp_path, "export", "--help", "a b", "--flag=1", "--", "-x")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 7
    assert result.stdout.splitlines() == ["<--help>", "<a b>", "<--flag=1>", "<-->", "<-x>"]


def test_program_takes_the_commands_place_so_signals_reach_it(tmp_path: Path) -> None:
    install(tmp_path, "tpuserve-serve", "trap 'echo drained; exit 0' TERM; echo $$; while :; do read line; done")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = alone(tmp_path, "serve")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate("\n")
    assert output == "drained\n"
    assert process.returncode == 0


def test_a_subcommand_starts_without_a_library_of_commands(tmp_path: Path) -> None:
    install(tmp_path, "tpuserve-serve", "true")
    program = (
        "import os, sys; sys.executable = 'nowhere'; sys.argv[1:] = ['serve']\n"
        "os.execv = lambda *program: (print(*sys.modules), sys.exit())\n"
        "from tpuserve_command.programs import tpuserve; tpuserve()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PATH": str(tmp_path)}
    )
    assert not {"click", "importlib.metadata", "numpy", "tpuserve_client"} & set(done.stdout.split())
