"""Wheels of the distributions, built offline as the image builds them."""

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.optional import cannot_run

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix) / "bin" / "uv"
# Directories of the distributions that have a package, and of the one that only depends on them.
PACKAGES = ("formats", "server", "exporter", "clients/python", "loadtests")
META = "deploy/tpuserve"


def build_wheels(directory: Path, projects: Iterable[str]) -> list[Path]:
    """Build the wheels of these projects into `directory`, and return all wheels there. Skip if uv is missing."""
    if not UV.exists():
        cannot_run("uv is not in this environment")
    options = ("--quiet", "--offline", "--wheel", "--no-build-isolation", "--python", sys.executable)
    for project in projects:
        subprocess.run(
            [UV, "build", *options, "--out-dir", directory, project], cwd=ROOT, check=True, capture_output=True
        )
    return sorted(directory.glob("*.whl"))


def read_project(project: str) -> dict[str, Any]:
    """Return the table `project` of a distribution's pyproject.toml."""
    document = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(document["project"])
