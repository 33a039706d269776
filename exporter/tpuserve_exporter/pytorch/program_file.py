"""`.pt2` files: saved programs of torch.export, loaded without running their code.

torch.export.load trusts a file. It unpickles parts of it, evaluates its expressions, and calls functions of torch that
its graph names. This module first checks the file, and refuses it if it holds more than a graph of tensor operations.
"""

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

from tpuserve_exporter.errors import SourceUnreadable, UnsafeSource, reason_of
from tpuserve_exporter.pytorch.quiet import quiet

# A graph may call operations (torch.ops.NAMESPACE.NAME.OVERLOAD) and arithmetic on sizes.
_ARITHMETIC = re.compile(r"_operator\.(?!methodcaller|attrgetter|itemgetter|call)\w+|math\.\w+|torch\._?sym_\w+")
_OPERATION = re.compile(r"torch\.ops\.([a-z]\w*)\.\w+(\.(?!__)\w+)?")
# The names in expressions of sizes, in sympy's notation.
_SIZES = frozenset(
    """
    Symbol Integer Rational Float Add Mul Pow Max Min Mod Abs Eq Ne Lt Le Gt Ge And Or Not Piecewise FloorDiv
    ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow
    FloatTrueDiv IntTrueDiv TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity oo int_oo true
    false StrictLessThan LessThan StrictGreaterThan GreaterThan Equality Unequality
    """.split()  # noqa: SIM905 - readable
)
_WORD = re.compile(r"\w+")


def read_program(path: Path, unsafe: bool) -> ExportedProgram:
    """Load a program. Raises SourceUnreadable, and UnsafeSource for a file that could run code, unless `unsafe`."""
    try:
        if not unsafe:
            _check_safe(path)
        with quiet():
            return _load(path)
    except UnsafeSource:
        raise
    except Exception as error:  # torch and zipfile raise many kinds of errors for damaged files
        reason = reason_of(error).replace(str(path), path.name).rstrip(". ")
        raise SourceUnreadable(
            f"cannot read {path.name} as a file of torch.export.save: {reason}. The file must be complete, saved by "
            f"torch {_release(torch.__version__)} or earlier, with its tensors on the CPU"
        ) from error


def _load(path: Path) -> ExportedProgram:
    """Load the file as torch.export.load does, but use its fallback only for old files. The fallback hides errors."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if not any(name.endswith("/archive_version") for name in names):
        return torch.export.load(path)
    programs = load_pt2(str(path)).exported_programs
    if len(programs) != 1:
        raise ValueError(f"it contains {len(programs)} programs instead of one")
    return next(iter(programs.values()))


def _release(version: str) -> str:
    return version.partition("+")[0]


def _check_safe(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        found = sorted(set(_unsafe_parts(archive)))
    if found:
        raise UnsafeSource(
            f"{path.name} contains more than a graph of tensor operations ({', '.join(found[:5])}). Reading it could "
            "run code from the file, with all your rights. Save it again with torch.export.save from a model of "
            "plain tensors, or use --unsafe if you trust the file's author",
            parts=found,
        )


def _unsafe_parts(archive: zipfile.ZipFile) -> Iterator[str]:
    for name in archive.namelist():
        if name.endswith((".so", ".dll")) or "/aotinductor/" in name:
            yield "compiled code"
        elif name.endswith(".json"):
            yield from _unsafe_values(json.loads(archive.read(name)))
        elif name.endswith(".pt"):
            yield from _unsafe_pickle(name, archive.read(name))


def _unsafe_pickle(name: str, content: bytes) -> Iterator[str]:
    """Yield the unsafe parts of tensors in torch's format. torch.export.load may unpickle them without restrictions."""
    try:
        yield from torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content)) if content else ()
    except Exception:  # another format, which this module cannot check
        yield f"{Path(name).name}, a pickle"


def _unsafe_values(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    if isinstance(value, list):
        for one in value:
            yield from _unsafe_values(one)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if key == "use_pickle" and one:
                yield f"{value.get('path_name')}, a pickle"
            elif key == "target" and isinstance(one, str) and not _is_operation(one):
                yield f"a call of {one}"
            elif key == "expr_str" and not _is_size(one):
                yield f"the expression {one!r}"
            else:
                yield from _unsafe_values(one)


def _is_operation(target: str) -> bool:
    operation = _OPERATION.fullmatch(target)
    # torch.ops has functions such as load_library next to the namespaces of operations.
    return bool(_ARITHMETIC.fullmatch(target)) or bool(operation and not hasattr(type(torch.ops), operation[1]))


def _is_size(text: object) -> bool:
    """Return whether an expression, which sympy evaluates, has only sizes and arithmetic."""
    try:
        nodes = list(ast.walk(ast.parse(str(text), mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return False
    return all(_is_harmless(node) for node in nodes)


def _is_harmless(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=function):
            return isinstance(function, ast.Name) and function.id in _SIZES
        case ast.Constant(value=value):
            return isinstance(value, int | float) or (isinstance(value, str) and bool(_WORD.fullmatch(value)))
        case ast.Name(id=name):
            return name in _SIZES or bool(re.fullmatch(r"[su]\d+", name))
        case (
            ast.Expression() | ast.keyword() | ast.UnaryOp() | ast.BinOp() | ast.Load() | ast.operator() | ast.unaryop()
        ):
            return True
        case _:
            return False
