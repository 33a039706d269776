"""Tests that a program refuses distributions of several versions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tpuserve_client
import tpuserve_command
import tpuserve_formats
from tests.support.wheels import META, PACKAGES, read_project
from tpuserve_command import programs
from tpuserve_command.installation import DISTRIBUTIONS, installed_versions, mixed_message

BIN = Path(sys.prefix) / "bin"
PROJECTS = {project["name"]: project for project in map(read_project, (*PACKAGES, META))}
SCRIPTS = {script: target for project in PROJECTS.values() for script, target in project.get("scripts", {}).items()}


def metadata(directory: Path, **versions: str) -> Path:
    """Create the directories of installed distributions' metadata."""
    for name, version in versions.items():
        (directory / f"{name}-{version}.dist-info").mkdir(parents=True)
    return directory


def test_all_distributions_are_compared() -> None:
    assert set(DISTRIBUTIONS) == PROJECTS.keys()


def test_every_distribution_has_one_version_and_requires_it_of_the_others() -> None:
    assert {project["version"] for project in PROJECTS.values()} == {tpuserve_command.__version__}
    assert tpuserve_client.__version__ == tpuserve_formats.__version__ == tpuserve_command.__version__
    for project in PROJECTS.values():
        extras = project.get("optional-dependencies", {}).values()
        requirements = [*project["dependencies"], *(each for extra in extras for each in extra)]
        ours = [requirement for requirement in requirements if requirement.startswith("tpuserve")]
        assert all(requirement.endswith(f"=={tpuserve_command.__version__}") for requirement in ours), ours


def test_every_program_checks_the_installation() -> None:
    owned = {script.removeprefix("tpuserve-") for script in SCRIPTS}
    assert set(SCRIPTS.values()) == {f"tpuserve_command.programs:{name}" for name in owned}
    for name in owned:
        assert callable(getattr(programs, name))


def test_every_distribution_with_a_program_requires_the_command() -> None:
    for name, project in PROJECTS.items():
        if "scripts" in project and name != "tpuserve-command":
            assert f"tpuserve-command=={project['version']}" in project["dependencies"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_mixed_installation_is_refused(script: str, tmp_path: Path) -> None:
    """The program looks at every directory of its path, so one on PYTHONPATH with another version suffices."""
    mixed = metadata(tmp_path, tpuserve_formats="9.0.0")
    environment = {**os.environ, "PYTHONPATH": str(mixed)}
    done = subprocess.run([BIN / script, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: tpuserve's packages in this environment have several versions: ")
    assert "but tpuserve-formats 9.0.0." in line
    assert f"{sys.executable} -m pip install " in line
    assert " tpuserve-server==9.0.0" in line


def test_the_message_names_the_older_distributions() -> None:
    message = mixed_message({"tpuserve-server": "0.9.0", "tpuserve-formats": "0.10.0", "tpuserve-command": "0.10.0"})
    assert "tpuserve-server 0.9.0, but tpuserve-command, tpuserve-formats 0.10.0" in message
    assert message.endswith("-m pip install tpuserve-command==0.10.0 tpuserve-formats==0.10.0 tpuserve-server==0.10.0")


def test_the_first_directory_of_the_path_counts(tmp_path: Path) -> None:
    first = metadata(tmp_path / "first", tpuserve_client="0.2.0", other="9", tpuserve_onnx="1.0")
    second = metadata(tmp_path / "second", tpuserve_client="0.1.0", tpuserve="0.2.0")
    found = installed_versions([str(tmp_path / "absent.zip"), str(first), str(second)])
    assert found == {"tpuserve-client": "0.2.0", "tpuserve": "0.2.0"}


def test_an_editable_checkout_has_one_version() -> None:
    versions = installed_versions(sys.path)
    assert set(versions.values()) == {tpuserve_command.__version__}
    assert versions.keys() >= {project for project in PROJECTS if project != "tpuserve"}
