"""Counts of a distribution's modules, classes and functions, from its source."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Counts:
    """One distribution. `root` is the directory of the package, such as server/tpuserve_server."""

    root: Path

    @cached_property
    def modules(self) -> dict[str, "Module"]:
        """The modules by dotted name."""
        paths = sorted(self.root.rglob("*.py"))
        return {self._name(path): Module(path, path.read_text()) for path in paths}

    def rows(self) -> dict[str, int | float]:
        """Return the rows of the table by name."""
        modules = [module for module in self.modules.values() if module.lines]
        functions = [function for module in modules for function in module.functions]
        return {
            "lines": sum(module.lines for module in modules),
            "files": len(modules),
            "lines of the median file": median(module.lines for module in modules),
            "lines of the longest file": max(module.lines for module in modules),
            "classes": sum(len(module.classes) for module in modules),
            "protocols": sum(map(_is_protocol, (each for module in modules for each in module.classes))),
            "lines of the mean function": round(mean(map(_lines, functions)), 1),
            "lines of the longest function": max(map(_lines, functions)),
            "files with one importer": sum(len(users) == 1 for users in self.importers().values()),
            "methods that only call one of a field": sum(
                map(_passes_through, (method for module in modules for method in module.methods))
            ),
            "names at the first level": sum(1 for _ in self._first_level()),
        }

    def importers(self) -> dict[str, set[str]]:
        """Return the modules that import each module that another one imports."""
        users: dict[str, set[str]] = {}
        for name, module in self.modules.items():
            for used in module.imports(self.modules):
                if used != name:
                    users.setdefault(used, set()).add(name)
        return users

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _first_level(self) -> Iterator[Path]:
        for path in self.root.iterdir():
            if path.name not in ("__init__.py", "__pycache__", "py.typed"):
                yield path


class Module:
    """One module and its syntax tree."""

    def __init__(self, path: Path, text: str) -> None:
        """Parse the text."""
        self.path = path
        self.lines = text.count("\n")
        self._nodes = list(ast.walk(ast.parse(text)))

    @property
    def classes(self) -> list[ast.ClassDef]:
        """All classes, nested ones included."""
        return [node for node in self._nodes if isinstance(node, ast.ClassDef)]

    @property
    def functions(self) -> list[_Function]:
        """All functions and methods."""
        return [node for node in self._nodes if isinstance(node, _Function)]

    @property
    def methods(self) -> list[_Function]:
        """Functions in the body of a class."""
        return [node for each in self.classes for node in each.body if isinstance(node, _Function)]

    def imports(self, known: Iterable[str]) -> set[str]:
        """Return the modules among `known` that this one imports, at any place."""
        known = set(known)
        used: set[str] = set()
        for node in self._nodes:
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                used |= inner & known or {node.module}
        return used & known


def _lines(node: _Function) -> int:
    assert node.end_lineno is not None, "the parser sets it"
    return node.end_lineno - node.lineno + 1


def _is_protocol(node: ast.ClassDef) -> bool:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)


def _passes_through(method: _Function) -> bool:
    """Return whether a method only calls a method of a field with its own arguments."""
    body = [each for each in method.body if not _is_docstring(each)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value
    if isinstance(call, ast.Await):
        call = call.value
    if not isinstance(call, ast.Call) or not _is_method_of_field(call.func):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(isinstance(each, ast.Name | ast.Starred) for each in given)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_method_of_field(node: ast.expr) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute):
        return False
    owner = node.value.value
    return isinstance(owner, ast.Name) and owner.id == "self"
