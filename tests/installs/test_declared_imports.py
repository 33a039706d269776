"""Tests that each distribution declares the packages that its code imports, and `tpuserve` declares all others."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from tests.support.wheels import META, PACKAGES, ROOT, read_project

INSTALLED = packages_distributions()
# Distributions by import name, if the environment of the tests lacks them or has several of this name.
KNOWN = {
    "google": {"protobuf"},
    "ray": {"ray"},
    "torch": {"torch"},
    "torchax": {"torchax"},
    "transformers": {"transformers"},
}
# Packages that come with a declared one, which is made for it or exports it.
COMPANIONS = {
    "pydantic_core": "pydantic",
    "jaxlib": "jax",
    "google_crc32c": "tpuserve-formats",
}
# Packages that code uses only where a user has installed them, and development tools.
OPTIONAL = {"IPython", "opentelemetry", "tf_keras"}
TOOLS = ("messages/generate.py", "_proto/generate.py")


def imported_names(source: str) -> Iterator[str]:
    """Yield the top-level name of each import, except those for type checkers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def third_party_imports(project: str) -> dict[str, Path]:
    """Return a file that imports it for each package from elsewhere."""
    found = {}
    for file in sorted((ROOT / project).glob("tpuserve_*/**/*.py")):
        if not file.as_posix().endswith(TOOLS):
            names = set(imported_names(file.read_text(encoding="utf-8"))) - OPTIONAL - sys.stdlib_module_names
            found.update(dict.fromkeys(names, file.relative_to(ROOT)))
    return found


def distribution(requirement: str) -> str:
    """Return the normalized name of a requirement's distribution."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, requirement
    return name[0].lower().replace("_", "-")


def declared(project: str) -> set[str]:
    """Return the distributions that a project or one of its extras requires, and the project itself."""
    metadata = read_project(project)
    extras = extras_of(metadata).values()
    requirements = [*metadata["dependencies"], *(each for extra in extras for each in extra)]
    return {metadata["name"], *map(distribution, requirements)}


def extras_of(metadata: dict[str, Any]) -> dict[str, list[str]]:
    """Return the requirements of each extra."""
    return dict(metadata.get("optional-dependencies", {}))


def providers(name: str) -> set[str]:
    """Return the distributions that provide an import name."""
    if name.startswith("tpuserve_"):
        return {name.replace("_", "-")}
    if name in COMPANIONS:
        return {COMPANIONS[name]}
    return KNOWN.get(name) or {distribution(each) for each in INSTALLED.get(name, ())}


@pytest.mark.parametrize("project", PACKAGES)
def test_every_imported_package_is_declared(project: str) -> None:
    imports = third_party_imports(project)
    assert ("click" if project == "clients/command" else "numpy") in imports
    undeclared = {name: str(file) for name, file in imports.items() if not providers(name) & declared(project)}
    assert not undeclared


def test_the_server_requires_no_tensorflow_without_its_extra() -> None:
    metadata = read_project("server")
    assert not any("tensorflow" in requirement for requirement in metadata["dependencies"])
    lock = (ROOT / "requirements/pjrt.lock").read_text(encoding="utf-8")
    assert re.search(r"^jax==", lock, re.MULTILINE)
    assert "tensorflow" not in lock


def test_the_meta_distribution_requires_every_other_and_has_each_of_their_extras() -> None:
    metadata = read_project(META)
    projects = {read_project(project)["name"]: read_project(project) for project in PACKAGES}
    required = {"tpuserve-server[tensorflow]", "tpuserve-exporter", "tpuserve-client", "tpuserve-loadtests"}
    assert {each.partition("==")[0] for each in metadata["dependencies"]} == required
    passed_on = {
        extra: {f"{name}[{extra}]" for name, project in projects.items() if extra in extras_of(project)}
        for project in projects.values()
        for extra in extras_of(project)
        if project["name"] != "tpuserve-formats" and extra != "tensorflow"
    }
    extras = extras_of(metadata).items()
    assert {extra: {each.partition("==")[0] for each in requires} for extra, requires in extras} == passed_on


def test_imports_are_found_and_those_for_type_checkers_are_not() -> None:
    source = "import a.b\nfrom c.d import e\nfrom . import f\nif TYPE_CHECKING:\n    import g\nelse:\n    import h\n"
    assert set(imported_names(source)) == {"a", "c", "h"}
