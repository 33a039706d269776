"""Tests for the runtimes: what is installed, model files, and the errors of versions whose runtime is missing."""

import sys
import tomllib
from importlib.metadata import version

import pytest

from tests.deploy.dockerfile import ROOT
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.executors.catalogue import executor_plugins, model_files
from tpuserve_server.executors.plugin import Runtime
from tpuserve_server.executors.tensorflow import TENSORFLOW

RUNTIMES = [plugin.runtime for plugin in executor_plugins()]
ABSENT = Runtime("Absent", "models of nobody", "no_such_package", ("no-such-package",), "tpuserve-server[absent]")


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_every_runtime_is_of_an_extra_of_the_server(runtime: Runtime) -> None:
    project = tomllib.loads((ROOT / "server/pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = project["optional-dependencies"][
        runtime.requirement.removeprefix("tpuserve-server[").removesuffix("]")
    ]
    assert any(requirement.startswith(f"{runtime.distributions[0]}>=") for requirement in requirements)
    assert not any(requirement.startswith(runtime.distributions[0]) for requirement in project["dependencies"])


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_an_installed_runtime_is_named_with_its_version(runtime: Runtime) -> None:
    assert runtime.is_installed
    assert runtime.state == f"{version(runtime.distributions[0])}, for {runtime.runs}"


def test_a_runtime_of_another_distribution_has_no_version() -> None:
    assert Runtime("JSON", "nothing", "json", ("no-such-package",), "").state == "installed, for nothing"


def test_a_missing_runtime_has_the_command_that_installs_it() -> None:
    assert not ABSENT.is_installed
    assert ABSENT.state == "not installed: pip install 'tpuserve-server[absent]'"
    error = ABSENT.missing("the version needs")
    assert error.code is Code.FAILED_PRECONDITION
    assert error.message == ("the version needs Absent, which is not installed: pip install 'tpuserve-server[absent]'")


def test_a_blocked_import_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert not TENSORFLOW.is_installed


def test_the_model_files_of_all_executors_begin_with_tensorflows() -> None:
    assert model_files() == ("saved_model.pb", "saved_model.pbtxt", "model.tflite")
