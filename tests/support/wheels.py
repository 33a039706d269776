"""Wheels of the distributions, built as `make wheels` builds them, and their metadata."""

import tomllib
from pathlib import Path
from typing import Any

from deploy.installation import wheels
from tests.support.optional import cannot_run

ROOT = wheels.ROOT
UV = wheels.UV
# Directories of the distributions that have a package, and of the one that only depends on them.
PACKAGES = ("formats", "clients/command", "server", "exporter", "clients/python", "loadtests")
META = "deploy/tpuserve"


def build_wheels(directory: Path) -> list[Path]:
    """Build all wheels into a new directory, and return them. Skip if uv is missing."""
    if not UV.exists():
        cannot_run("uv is not in this environment")
    return wheels.build_wheels(directory)


def read_project(project: str) -> dict[str, Any]:
    """Return the table `project` of a distribution's pyproject.toml."""
    document = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(document["project"])
