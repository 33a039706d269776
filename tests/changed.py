"""Prints the test modules that a change can fail: `python -m tests.changed --base main`. `make test-changed` runs them.

A test module depends on the modules that it and its conftest.py files import, at any distance. A string that names a
module, such as the argument of `python -m`, or a console script counts as an import of it.
"""

import re
import subprocess
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

import click
import grimp

ROOT = Path(__file__).parents[1]
# Packages, and the directories that contain them.
PACKAGES = {
    "tpuserve_formats": "formats",
    "tpuserve_server": "server",
    "tpuserve_exporter": "exporter",
    "tpuserve_command": "clients/command",
    "tpuserve_client": "clients/python",
    "tpuserve_loadtests": "loadtests",
    **dict.fromkeys(("benchmarks", "deploy", "examples", "tests"), ""),
}
# A change of these can fail every test.
EVERYTHING = re.compile(r"pyproject\.toml|Makefile|requirements/.*|tests/.*\.txt")
# Tests that read documents and files of many other folders.
READERS = ("tests/docs", "tests/deploy")
# A program of tpuserve_command.programs, and the module that it starts.
_PROGRAM = re.compile(r"""^(\w+) = _program\("([\w.]+):""", re.MULTILINE)
_STRING = re.compile(r"""["']([\w./-]+)["'.]""")


class Dependencies:
    """The graph of all modules of the repository."""

    def __init__(self) -> None:
        """Read the modules. Takes about 2 s."""
        self._graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        self._paths = {module: path for module in self._graph.modules if (path := _path_of(module)) is not None}
        self._modules = {path: module for module, path in self._paths.items()}
        self._strings = {module: set(_STRING.findall(path.read_text())) for module, path in self._paths.items()}
        self._add_started_modules()
        self._add_fixtures()

    def tests_of(self, changed: Iterable[str]) -> list[str]:
        """Return the paths of test modules and of directories of tests. All paths are relative to the repository."""
        found: set[str] = set()
        tests: set[str] = set()
        for path in changed:
            if EVERYTHING.fullmatch(path):
                return ["tests"]
            if (module := self._owner(path)) is not None:
                found |= {module, *self._graph.find_downstream_modules(module)}
            if not path.endswith(".py"):
                tests |= {*READERS}
                for user in self._that_name(path):
                    found |= {user, *self._graph.find_downstream_modules(user)}
        tests |= {str(self._paths[module].relative_to(ROOT)) for module in found if _is_test(module)}
        return sorted(tests)

    def _add_started_modules(self) -> None:
        """Add what strings name, except from one distribution to another: the tests of such a start name it too."""
        programs = dict(_PROGRAM.findall(self._paths["tpuserve_command.programs"].read_text()))
        scripts = {
            script.name: programs.get(script.attr, script.module) for script in entry_points(group="console_scripts")
        }
        for module, strings in self._strings.items():
            may_start_all = not PACKAGES[_package(module)]
            for started in {scripts.get(string, string) for string in strings} & self._paths.keys() - {module}:
                if may_start_all or _package(module) == _package(started):
                    self._graph.add_import(importer=module, imported=started)

    def _add_fixtures(self) -> None:
        for module in filter(_is_test, self._paths):
            parts = module.split(".")
            for depth in range(1, len(parts)):
                conftest = ".".join((*parts[:depth], "conftest"))
                if conftest in self._paths:
                    self._graph.add_import(importer=module, imported=conftest)

    def _owner(self, path: str) -> str | None:
        """Return the module of a source file, or the package of another file inside one."""
        file = ROOT / path
        if file.suffix == ".py":
            return self._modules.get(file)
        packages = (self._modules.get(folder / "__init__.py") for folder in file.parents)
        return next((package for package in packages if package is not None), None)

    def _that_name(self, path: str) -> set[str]:
        """Return the modules with a string that is a path's file name or ends a longer part of the path."""
        return {
            module
            for module, strings in self._strings.items()
            if any(string == path or f"/{path}".endswith(f"/{string}") for string in strings)
        }


def _package(module: str) -> str:
    return module.partition(".")[0]


def _path_of(module: str) -> Path | None:
    """Return the file of a module, or None for a directory without `__init__.py`."""
    base = ROOT.joinpath(PACKAGES[_package(module)], *module.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in files if file.exists()), None)


def _is_test(module: str) -> bool:
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


def changed_since(base: str) -> list[str]:
    """Return the files that differ from the last common commit with `base`, new ones included."""
    fork = _git("merge-base", base, "HEAD")[0]
    return [*_git("diff", "--name-only", fork), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


@click.command()
@click.option("--base", default="main", show_default=True, help="A commit or a branch.")
def main(base: str) -> None:
    """Print the test modules that depend on the files changed since BASE."""
    for test in Dependencies().tests_of(changed_since(base)):
        click.echo(test)


if __name__ == "__main__":
    main()
