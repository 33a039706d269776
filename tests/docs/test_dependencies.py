"""Tests that the table of dependencies is that of the projects' files, and that every package is imported."""

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT

PAGE = (ROOT / "docs/reference/dependencies.md").read_text()
PROJECTS = {
    "formats": "formats",
    "command": "clients/command",
    "server": "server",
    "exporter": "exporter",
    "client": "clients/python",
    "loadtests": "loadtests",
}
# Packages that another one, or a console script, imports for us. The table has the reason.
IMPORTED_BY_OTHERS = {"sniffio", "tpuserve-command"}


def required(project: str) -> set[str]:
    """Return the names of the packages that a distribution requires, without extras."""
    text = (ROOT / PROJECTS[project] / "pyproject.toml").read_text()
    return {re.split(r"[\[<>=;~ ]", each)[0] for each in tomllib.loads(text)["project"]["dependencies"]}


def imported(project: str) -> set[str]:
    """Return the packages whose modules a distribution imports, at any place."""
    names: set[str] = set()
    for path in Path(ROOT, PROJECTS[project]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    owners = {**packages_distributions(), **{f"tpuserve_{part}": [f"tpuserve-{part}"] for part in PROJECTS}}
    return {re.sub(r"[-_.]+", "-", owner).lower() for name in names for owner in owners.get(name, ())}


def test_the_table_is_that_of_the_projects() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| ([\w, ]+) \| \S", PAGE, re.MULTILINE)[1:]
    table = {name: set(projects.split(", ")) for name, projects in rows}
    expected: dict[str, set[str]] = {}
    for project in PROJECTS:
        for name in required(project):
            expected.setdefault(name, set()).add(project)
    assert table == expected
    assert list(table) == sorted(table)


@pytest.mark.parametrize("project", PROJECTS)
def test_every_required_package_is_imported(project: str) -> None:
    assert required(project) - imported(project) - IMPORTED_BY_OTHERS == set()
