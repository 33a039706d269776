"""Tests of the distributions' metadata, as a package index shows it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.support.optional import cannot_run

PROJECTS = ("formats", "server", "exporter", "clients/python", "loadtests")
BIN = Path(sys.prefix) / "bin"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build the wheel of each distribution."""
    if not (BIN / "uv").exists():
        cannot_run("uv is not in this environment")
    directory = tmp_path_factory.mktemp("wheels")
    options = ("--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", directory)
    for project in PROJECTS:
        subprocess.run([BIN / "uv", "build", *options, project], cwd=ROOT, check=True, capture_output=True)
    return sorted(directory.glob("*.whl"))


def test_an_index_accepts_the_wheels(wheels: list[Path]) -> None:
    assert len(wheels) == len(PROJECTS)
    checked = subprocess.run([BIN / "twine", "check", "--strict", *wheels], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("project", PROJECTS)
def test_the_metadata_say_what_the_distribution_is(project: str) -> None:
    metadata = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata["readme"] == "README.md"
    assert metadata["description"].endswith(".")
    assert metadata["authors"]
    assert len(metadata["keywords"]) >= 4
    assert {"Development Status :: 4 - Beta", "Typing :: Typed"} <= set(metadata["classifiers"])


@pytest.mark.parametrize("project", PROJECTS)
def test_the_readme_begins_with_a_sentence_and_the_installation(project: str) -> None:
    text = (ROOT / project / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# tpuserve-")
    assert re.search(rf"pip install '?tpuserve-{Path(project).name.replace('python', 'client')}", text)
