"""Tests for `.ci/run` and its like with stubs for apt-get and make: the calls, and the reaction to their results."""

from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.deploy.stand_ins import Machine

CI_RUN = ROOT / ".ci/run"
NIGHTLY = ROOT / ".ci/run-nightly"
DEPLOYMENTS = ROOT / ".ci/run-deployments"
COMPILED = ROOT / ".ci/run-compiled"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.program("dpkg-query", "exit 1")
    machine.program("apt-get")
    machine.program("service")
    machine.program("make", "cat; echo CI=$CI; echo '3 passed in 0.01s'")
    return machine


def test_missing_packages_are_installed_before_the_tests(machine: Machine) -> None:
    ran = machine.run(CI_RUN)
    assert ran.returncode == 0, ran
    assert [call.split()[1] for call in machine.called("apt-get")] == ["update", "install"]
    assert machine.called("apt-get")[1].endswith("curl make nghttp2-client prometheus wrk")
    assert machine.called("make") == [
        "make torch", "make oip-clients", "make helm", "make audit IF_REACHABLE=1", "make test-ci"
    ]  # fmt: skip


def test_all_tests_run_at_night(machine: Machine) -> None:
    assert machine.run(NIGHTLY).returncode == 0
    assert machine.called("make")[-1] == "make test-all"


def test_compiled_modules_get_their_tests(machine: Machine) -> None:
    ran = machine.run(COMPILED)
    assert ran.returncode == 0, ran
    assert machine.called("make")[-1] == "make test-compiled"


def test_deployments_have_packages_and_tests_of_their_own(machine: Machine) -> None:
    ran = machine.run(DEPLOYMENTS)
    assert ran.returncode == 0, ran
    assert machine.called("apt-get")[1].endswith("curl iproute2 make mmdebstrap podman prometheus runc")
    assert machine.called("make") == ["make test-deployments"]


def test_the_service_of_a_new_package_is_stopped(machine: Machine) -> None:
    assert machine.run(CI_RUN).returncode == 0
    assert machine.called("service") == ["service prometheus stop"]


def test_the_service_of_a_package_that_was_there_is_left_alone(machine: Machine) -> None:
    machine.program("dpkg-query", "echo installed")
    assert machine.run(CI_RUN).returncode == 0
    assert machine.called("service") == []


def test_tests_see_ci_and_no_standard_input_and_close_the_output(machine: Machine) -> None:
    assert machine.run(CI_RUN).stdout.splitlines()[-2:] == ["CI=true", "3 passed in 0.01s"]


def test_packages_that_are_there_are_left_alone(machine: Machine) -> None:
    machine.program("dpkg-query", "echo installed")
    assert machine.run(CI_RUN).returncode == 0
    assert machine.called("apt-get") == []


def test_who_is_not_root_runs_the_tests_with_what_there_is(machine: Machine) -> None:
    machine.program("id", "echo 1000")
    assert machine.run(CI_RUN).returncode == 0
    assert machine.called("apt-get") == []


def test_installation_is_tried_again(machine: Machine) -> None:
    machine.program("apt-get", f'[ "$(grep -c ^apt-get "{machine.calls}")" -gt 2 ]')
    assert machine.run(CI_RUN).returncode == 0
    assert [call.split()[1] for call in machine.called("apt-get")] == ["update", "update", "update", "install"]


def test_run_fails_when_a_package_cannot_be_had(machine: Machine) -> None:
    machine.program("apt-get", "exit 100")
    assert machine.run(CI_RUN).returncode != 0
    assert machine.called("make") == []


def test_run_fails_as_the_tests_do(machine: Machine) -> None:
    machine.program("make", "exit 2")
    assert machine.run(CI_RUN).returncode == 2
