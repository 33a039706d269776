"""Tests of the distributions' metadata, as a package index shows it."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.wheels import META, PACKAGES, ROOT, build_wheels, read_project

PROJECTS = (*PACKAGES, META)
BIN = Path(sys.prefix) / "bin"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build the wheel of each distribution."""
    return build_wheels(tmp_path_factory.mktemp("wheels"))


def test_an_index_accepts_the_wheels(wheels: list[Path]) -> None:
    assert len(wheels) == len(PROJECTS)
    checked = subprocess.run([BIN / "twine", "check", "--strict", *wheels], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_wheel_contains_the_licence(wheels: list[Path]) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
            assert archive.read(name) == licence


@pytest.mark.parametrize("project", PROJECTS)
def test_the_metadata_say_what_the_distribution_is(project: str) -> None:
    metadata = read_project(project)
    assert metadata["readme"] == "README.md"
    assert metadata["description"].endswith(".")
    assert metadata["authors"]
    assert len(metadata["keywords"]) >= 4
    assert "Development Status :: 4 - Beta" in metadata["classifiers"]
    assert ("Typing :: Typed" in metadata["classifiers"]) is (project in PACKAGES)


@pytest.mark.parametrize("project", PROJECTS)
def test_the_readme_begins_with_a_sentence_and_the_installation(project: str) -> None:
    text = (ROOT / project / "README.md").read_text(encoding="utf-8")
    name = read_project(project)["name"]
    assert text.startswith(f"# {name}\n")
    assert re.search(rf"^(pip install '?|<!-- install: ){name}\b", text, re.MULTILINE)
