"""Tests for `.ci/run-debian13` with stubs for commands that need root: the calls, and the reaction to their results."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.deploy.stand_ins import Machine

SCRIPT = ROOT / ".ci/run-debian13"
MIRROR = "http://mirror.example/debian/"
APT = f"""echo "Debian-Security main http://security.example/"; echo "Debian contrib http://contrib.example/"
echo "Debian main {MIRROR}"; echo "Debian main http://second.example/debian/" """


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Simulate root on a Debian that allows namespaces and has a Debian 13 tree, where all commands succeed."""
    machine = Machine(tmp_path)
    machine.program("apt-get", APT)
    machine.program("apt-config", """echo 'APT "";'; echo 'Acquire::http::Proxy "http://proxy.example:3128/";'""")
    machine.program("unshare", 'while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    machine.program("mmdebstrap", 'mkdir --parents "${@: -2:1}/etc"')
    machine.program("mount")
    machine.program("chroot", 'test -f "$1/tpuserve/.ci/run" || exit 9; echo CI=$CI')
    return machine


def commands(machine: Machine) -> list[str]:
    """Return the commands that ran in the new Debian, without their environment."""
    return [call.split("/sbin:/bin ", 1)[1] for call in machine.called("chroot")]


def leftovers(machine: Machine) -> list[Path]:
    return list(machine.folder.glob("tpuserve-debian13*"))


def test_script_is_valid_bash_that_can_be_executed() -> None:
    checked = subprocess.run(["bash", "-n", SCRIPT], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert os.access(SCRIPT, os.X_OK)


def test_help_names_every_option_and_needs_nothing(machine: Machine) -> None:
    machine.program("id", "echo 1000")
    helped = machine.run(SCRIPT, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("Usage: .ci/run-debian13 ")
    assert "--timeout SECONDS" in helped.stdout
    assert "Exit codes:" in helped.stdout


def test_both_suites_run_on_the_debian_of_apts_own_mirror(machine: Machine) -> None:
    ran = machine.run(SCRIPT)
    assert ran.returncode == 0, ran
    [made] = machine.called("mmdebstrap")
    assert made.split()[-3] == "trixie"
    assert made.endswith(f" {MIRROR}")
    assert '--aptopt=Acquire::http::Proxy "http://proxy.example:3128/";' in made
    setup, version, tests = commands(machine)
    assert (setup, version) == ("make setup", ".venv/bin/python --version")
    assert tests == ".venv/bin/python -m pytest -q -n 2 --dist loadgroup tests/clients tests/command tests/server"
    assert ran.stdout.splitlines()[-1] == "CI=true"
    assert leftovers(machine) == []


def test_given_tests_run_instead(machine: Machine) -> None:
    assert machine.run(SCRIPT, "tests/server/core", "tests/clients/test_tls.py").returncode == 0
    assert commands(machine)[-1].endswith("loadgroup tests/server/core tests/clients/test_tls.py")


@pytest.mark.parametrize(("failing", "status"), [("-m pytest", 1), ("make setup", 7)])
def test_status_is_that_of_the_tests_or_of_the_step_that_failed(machine: Machine, failing: str, status: int) -> None:
    machine.program("chroot", f'[[ "$*" != *"{failing}"* ]] || exit {status}')
    assert machine.run(SCRIPT).returncode == status
    assert failing in commands(machine)[-1]
    assert leftovers(machine) == []


def test_run_fails_where_no_debian_can_be_made(machine: Machine) -> None:
    machine.program("mmdebstrap", "exit 25")
    assert machine.run(SCRIPT).returncode == 25
    assert leftovers(machine) == []


@pytest.mark.parametrize(
    ("program", "body", "reason"),
    [
        ("id", "echo 1000", "Only root can make a Debian 13 here."),
        ("unshare", "exit 1", "This machine does not allow new mount and process namespaces."),
        ("apt-get", "", "apt knows no mirror of Debian: apt-get update"),
    ],
)
def test_where_it_is_impossible_it_says_why(machine: Machine, program: str, body: str, reason: str) -> None:
    machine.program(program, body)
    check_refused(machine, machine.run(SCRIPT), reason)


@pytest.mark.parametrize("program", ["mmdebstrap", "git"])
def test_programs_that_are_missing_are_named(machine: Machine, program: str) -> None:
    (machine.folder / "mmdebstrap").unlink()
    for known in {"bash", "dirname", "mmdebstrap", "git"} - {program}:
        (machine.folder / known).symlink_to(shutil.which(known) or "/bin/true")
    refused = machine.run(SCRIPT, PATH=str(machine.folder))
    check_refused(machine, refused, f"There is no {program}. On Debian: apt-get install {program}")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--fast"], "There is no option --fast: see --help."),
        (["--timeout"], "--timeout expects seconds, a whole number above 0."),
        (["--timeout", "0"], "--timeout expects seconds, a whole number above 0."),
        (["--timeout", "5m"], "--timeout expects seconds, a whole number above 0."),
    ],
)
def test_wrong_arguments_are_refused(machine: Machine, arguments: list[str], reason: str) -> None:
    check_refused(machine, machine.run(SCRIPT, *arguments), reason)


def check_refused(machine: Machine, run: subprocess.CompletedProcess[str], reason: str) -> None:
    assert (run.returncode, run.stderr) == (2, f".ci/run-debian13: {reason}\n")
    assert not machine.calls.exists() or machine.called("chroot") == []
    assert leftovers(machine) == []


def test_what_takes_too_long_is_ended(machine: Machine) -> None:
    machine.program("chroot", "sleep 600")
    ended = machine.run(SCRIPT, "--timeout", "1")
    assert ended.returncode == 124
    assert "Out of time: 1 s" in ended.stdout
    assert leftovers(machine) == []


def test_a_signal_ends_what_runs_and_removes_the_debian(machine: Machine) -> None:
    started = machine.folder / "started"
    os.mkfifo(started)
    machine.program("chroot", f'echo >"{started}"; exec sleep 600')
    with subprocess.Popen([SCRIPT], env=machine.environment(), stdout=subprocess.PIPE) as run:
        started.read_text()
        run.send_signal(signal.SIGTERM)
        # The pipe closes when the last process of the script ends.
        run.communicate()
    assert run.returncode == 143
    assert leftovers(machine) == []
