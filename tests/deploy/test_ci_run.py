"""`.ci/run` with stand-ins for apt-get and make on PATH: what it asks of them, and what it makes of their answers."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT

CI_RUN = ROOT / ".ci/run"


class Machine:
    """A folder of stand-in programs that goes first on PATH, and the record of how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.program("id", "echo 0")
        self.program("dpkg-query", "exit 1")
        self.program("apt-get")
        self.program("make", "cat; echo CI=$CI; echo '3 passed in 0.01s'")

    def program(self, name: str, body: str = "") -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"{self.calls}"\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def called(self, name: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.startswith(name)]

    def run(self) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": str(self.folder)}
        return subprocess.run(
            [CI_RUN], cwd=self.folder, env=environment, input="typed", capture_output=True, text=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_missing_packages_are_installed_before_the_tests(machine: Machine) -> None:
    ran = machine.run()
    assert ran.returncode == 0, ran
    assert [call.split()[1] for call in machine.called("apt-get")] == ["update", "install"]
    assert machine.called("apt-get")[1].endswith("curl make nghttp2-client wrk")
    assert machine.called("make") == ["make torch", "make test", "make rest"]


def test_tests_see_ci_and_no_standard_input_and_close_the_output(machine: Machine) -> None:
    assert machine.run().stdout.splitlines()[-2:] == ["CI=true", "3 passed in 0.01s"]


def test_packages_that_are_there_are_left_alone(machine: Machine) -> None:
    machine.program("dpkg-query", "echo installed")
    assert machine.run().returncode == 0
    assert machine.called("apt-get") == []


def test_who_is_not_root_runs_the_tests_with_what_there_is(machine: Machine) -> None:
    machine.program("id", "echo 1000")
    assert machine.run().returncode == 0
    assert machine.called("apt-get") == []


def test_installation_is_tried_again(machine: Machine) -> None:
    machine.program("apt-get", f'[ "$(grep -c ^apt-get "{machine.calls}")" -gt 2 ]')
    assert machine.run().returncode == 0
    assert [call.split()[1] for call in machine.called("apt-get")] == ["update", "update", "update", "install"]


def test_run_fails_when_a_package_cannot_be_had(machine: Machine) -> None:
    machine.program("apt-get", "exit 100")
    assert machine.run().returncode != 0
    assert machine.called("make") == []


def test_run_fails_as_the_tests_do(machine: Machine) -> None:
    machine.program("make", "exit 2")
    assert machine.run().returncode == 2
