"""Tests that compiled modules have none of the forms whose meaning mypyc changes without an error."""

import ast
from collections.abc import Iterable, Iterator

import pytest

from deploy.installation.compiled import MODULES, PACKAGE, SERVER

_CHECKED = frozenset(("bytes", "str", "int", "float", "bool", "list", "dict", "set", "tuple"))
_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)


def waits_in_handlers(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each wait in an `except` or `finally` block, and of each `async with`, whose exit is one.

    While a compiled coroutine waits there, other coroutines of the thread see its exception as the current one. If one
    of them raises its own again, at the end of `with` or `finally`, it raises the foreign one.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            yield from _waits([*(each for handler in node.handlers for each in handler.body), *node.finalbody])
        elif isinstance(node, ast.AsyncWith):
            yield node.lineno


def _waits(statements: Iterable[ast.AST]) -> Iterator[int]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, _WAITS):
                assert isinstance(node, ast.expr | ast.stmt)
                yield node.lineno


def forbidden_classes(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each subclass of threading.local, which threads would share, and of each object in a tuple."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base) for base in node.bases}
            if "threading.local" in bases:
                yield node.lineno
            if "NamedTuple" in bases:
                # Reading one raises KeyError.
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                yield from (each.lineno for each in fields if ast.unparse(each.annotation) == "object")


def casts_to_checked_types(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each `cast` to a type that compiled code checks when it gets the value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cast":
            wanted = node.args[0]
            if isinstance(wanted, ast.Constant) and not _CHECKED.isdisjoint(str(wanted.value).split(" | ")):
                yield node.lineno


def test_no_cast_hides_a_type_that_compiled_code_checks() -> None:
    # A value reaches compiled modules from any other.
    found = {str(path): [*casts_to_checked_types(ast.parse(path.read_text()))] for path in SERVER.rglob("*.py")}
    assert len(found) > len(MODULES)
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("module", MODULES)
def test_module_has_no_form_that_compiled_code_changes(module: str) -> None:
    tree = ast.parse((SERVER / PACKAGE / f"{module}.py").read_text())
    assert [*waits_in_handlers(tree), *forbidden_classes(tree)] == []


def test_forms_are_found() -> None:
    source = """
async def f():
    try:
        await g()
    except ValueError:
        await h()
    finally:
        await i()
    async with j:
        pass

class A(threading.local):
    pass

class B(NamedTuple):
    a: int
    b: object

c = cast("bytes", cast("Array", d))
e = cast("str | None", f)
"""
    tree = ast.parse(source)
    assert sorted(waits_in_handlers(tree)) == [6, 8, 9]
    assert list(forbidden_classes(tree)) == [12, 17]
    assert list(casts_to_checked_types(tree)) == [19, 20]
