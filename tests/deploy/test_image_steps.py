"""No container engine is needed to know that the image builds: its build stage's COPY and RUN are carried out here, in
a folder of their own, with this machine's Python in the base image's place."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT, Instruction, read_dockerfile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("image")]

OFFLINE = re.compile(r"connection|resolve host|name resolution|network|dns error|timed out", re.IGNORECASE)


def plain_environment() -> dict[str, str]:
    """This process' environment without what would leak from the outer virtual environment or coverage run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"}


def carry_out(step: Instruction, image: Path, build: Path) -> None:
    """Do one COPY or RUN with ``image`` as the root of /opt and ``build`` as the working directory."""
    if step.name == "COPY":
        copy(step.words[:-1], build / step.words[-1])
    elif step.name == "RUN":
        command = step.text.replace("/opt/", f"{image}/opt/")
        ran = subprocess.run(
            ["/bin/sh", "-ec", command], cwd=build, env=plain_environment(), capture_output=True, text=True, check=False
        )
        if ran.returncode != 0 and OFFLINE.search(ran.stderr) and not os.environ.get("CI"):
            pytest.skip(f"needs the package index: {ran.stderr.strip().splitlines()[-1]}")
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"


def copy(sources: list[str], destination: Path) -> None:
    """COPY: a folder's contents become the destination's, files go into it."""
    for source in (ROOT / name for name in sources):
        if source.is_dir():
            shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination)


@pytest.fixture(scope="module")
def bin_folder() -> Iterator[Path]:
    """The ``bin`` of /opt/tpuserve as the build stage leaves it. Removed at the end: TensorFlow is large."""
    with tempfile.TemporaryDirectory() as folder:
        image, build = Path(folder, "image"), Path(folder, "build")
        for each in (image / "opt", build):
            each.mkdir(parents=True)
        for step in read_dockerfile().stages[0]:
            carry_out(step, image, build)
        yield image / "opt/tpuserve/bin"


def run(command: str, *arguments: str, bin_folder: Path) -> subprocess.CompletedProcess[str]:
    environment = plain_environment()
    environment["PATH"] = f"{bin_folder}:{environment['PATH']}"
    return subprocess.run(
        [bin_folder / command, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["tpuserve-serve", "tpuserve"])
def test_command_runs_from_what_the_image_installs(command: str, bin_folder: Path) -> None:
    helped = run(command, "--help", bin_folder=bin_folder)
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.startswith("Usage: ")


def test_image_holds_no_installer_and_nothing_of_the_source_tree(bin_folder: Path) -> None:
    held = {path.name for path in bin_folder.iterdir()}
    assert not held & {"pip", "uv"}
    listed = run("python", "-c", "import tpuserve_server; print(tpuserve_server.__file__)", bin_folder=bin_folder)
    assert listed.stdout.startswith(str(bin_folder.parent)), listed
