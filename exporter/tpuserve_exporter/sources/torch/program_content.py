"""Finds content of `.pt2` files, programs of torch.export, that runs code when torch reads or runs the program.

torch evaluates the expressions in a program, compiles its names into Python code, and calls functions that its graph
names. This module checks the JSON documents and the names of the parts, and needs no torch. It reads no pickles.
"""

import ast
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

# A graph may call operations (torch.ops.NAMESPACE.NAME.OVERLOAD) and arithmetic on sizes.
_ARITHMETIC: Final = re.compile(
    r"_operator\.(abs|add|and_|eq|floordiv|ge|getitem|gt|index|inv|invert|le|lshift|lt|mod|mul|ne|neg|not_|or_|pos|pow|"
    r"rshift|sub|truediv|truth|xor)|math\.[a-z]\w*|torch\._?sym_\w+"
)
_OPERATION: Final = re.compile(r"torch\.ops\.(?P<space>\w+)\.(?P<name>\w+)(\.(?!__)\w+)?")
# Namespaces of operations that compute tensors from tensors. Others communicate, or run code of libraries.
_NAMESPACES: Final = frozenset({"aten", "prims", "quantized_decomposed", "torchvision"})
_WITH_FILES: Final = frozenset({"from_file", "load", "print", "save", "to_here", "warn"})
_HIGHER_ORDER: Final = frozenset(
    """
    associative_scan cond flex_attention map map_impl scan while_loop wrap_with_autocast wrap_with_set_grad_enabled
    """.split()  # noqa: SIM905 - readable
)
# The names in expressions of sizes, in sympy's notation.
_SIZES: Final = frozenset(
    """
    Symbol Integer Rational Float Add Mul Pow Max Min Mod Abs Eq Ne Lt Le Gt Ge And Or Not Piecewise FloorDiv
    ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow
    FloatTrueDiv IntTrueDiv TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity oo int_oo true
    false StrictLessThan LessThan StrictGreaterThan GreaterThan Equality Unequality
    """.split()  # noqa: SIM905 - readable
)
_GUARD_CALLS: Final = frozenset(
    """
    abs bool ceil dim float floor int is_contiguous isinstance len log2 max min numel pow round size sqrt
    storage_offset stride sym_float sym_int sym_ite sym_max sym_min sym_not trunc
    """.split()  # noqa: SIM905 - readable
)
_WORD: Final = re.compile(r"\w+")
_NAME: Final = re.compile(r"[\w.]*")
_PATH: Final = re.compile(r"[^\"'\\\r\n]*")
_KEY: Final = re.compile(r"[\w .:/-]*")
_TENSOR_FILE: Final = re.compile(r"(weight|tensor)_\d+")
# Parts, without the archive's own directory, that torch reads as programs or unpickles.
_OBJECT: Final = re.compile(r"models/|data/constants/(custom|opaque)_obj")


def unsafe_parts(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield what is unsafe in the names and JSON documents of a program's parts."""
    names = archive.namelist()
    # torch ignores the case of names, and reads the first of two parts with the same name.
    yield from (f"{name}, twice" for name, count in Counter(name.lower() for name in names).items() if count > 1)
    for name in names:
        lower = name.lower()
        if lower.endswith((".so", ".dll")) or "/aotinductor/" in lower:
            yield "compiled code"
        elif name.endswith(".json"):
            yield from unsafe_values(json.loads(archive.read(name)))
        elif _OBJECT.match(lower.partition("/")[2]) and not name.endswith("/"):
            yield f"{name.rpartition('/')[2]}, an object"


def unsafe_values(value: object) -> Iterator[str]:
    """Yield what is unsafe in a JSON document, such as `a call of os.mkdir`, at any depth."""
    if isinstance(value, list):
        for one in value:
            yield from unsafe_values(one)
    elif isinstance(value, Mapping):
        if value.get("use_pickle"):
            yield f"{value.get('path_name')}, a pickle"
        for key, one in value.items():
            yield from _unsafe_value(key, one)


def _unsafe_value(key: str, value: object) -> Iterator[str]:
    if key in _CHECKS and value is not None and not isinstance(value, Mapping):
        described, is_safe = _CHECKS[key]
        for one in value if isinstance(value, list) else [value]:
            if not is_safe(one):
                yield f"{described} {one if described == _CALL else repr(one)}"
    else:
        yield from unsafe_values(value)


def is_operation(target: object) -> bool:
    """Return whether a graph may call `target`: operations on tensors that open no file, and arithmetic."""
    if not isinstance(target, str):
        return False
    if _ARITHMETIC.fullmatch(target):
        return True
    found = _OPERATION.fullmatch(target)
    if found is None:
        return False
    if found["space"] == "higher_order":
        return found["name"] in _HIGHER_ORDER
    return found["space"] in _NAMESPACES and found["name"] not in _WITH_FILES


def is_size(text: object) -> bool:
    """Return whether an expression, which sympy evaluates, has only sizes and arithmetic."""
    return _all_nodes(text, _is_harmless)


def is_guard(text: object) -> bool:
    """Return whether an expression, which torch compiles as Python, only compares sizes of inputs."""
    return _all_nodes(text, _is_comparison)


def is_structure(text: object) -> bool:
    """Return whether the structure of inputs or outputs, JSON in a text, has only names that are no Python code."""
    try:
        return text == "" or _has_only_keys(json.loads(str(text)))
    except (ValueError, RecursionError):
        return False


def _has_only_keys(value: Any) -> bool:  # noqa: ANN401 - JSON
    if isinstance(value, list):
        return all(_has_only_keys(one) for one in value)
    if isinstance(value, Mapping):
        # torch imports the module of a defaultdict's factory.
        factory = value.get("default_factory_module", "builtins") == "builtins"
        return factory and all(_has_only_keys(one) for pair in value.items() for one in pair)
    if isinstance(value, str) and value[:1] in ("[", "{", '"'):
        return _has_only_keys(json.loads(value))
    return not isinstance(value, str) or bool(_KEY.fullmatch(value))


def _all_nodes(text: object, is_safe: Callable[[ast.AST], bool]) -> bool:
    try:
        return all(is_safe(node) for node in ast.walk(ast.parse(str(text), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


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


def _is_comparison(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _GUARD_CALLS
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return not name.startswith("_")
        case ast.expr_context() | ast.operator() | ast.unaryop() | ast.cmpop() | ast.boolop():
            return True
        case ast.Expression() | ast.UnaryOp() | ast.BinOp() | ast.BoolOp() | ast.Compare() | ast.IfExp():
            return True
        case ast.Subscript() | ast.Constant() | ast.List() | ast.Tuple():
            return True
        case _:
            return False


def _is_text(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or bool(pattern.fullmatch(value))


_CALL: Final = "a call of"
# What torch does with the values of a key: it calls, evaluates or compiles them, or unpickles the file they name.
_CHECKS: Final[Mapping[str, tuple[str, Callable[[object], bool]]]] = {
    "target": (_CALL, is_operation),
    "as_operator": (_CALL, is_operation),
    "expr_str": ("the expression", is_size),
    "guards_code": ("the guard", is_guard),
    "in_spec": ("the structure", is_structure),
    "out_spec": ("the structure", is_structure),
    "name": ("the name", _is_text(_NAME)),
    "as_name": ("the name", _is_text(_NAME)),
    "forward_arg_names": ("the name", _is_text(_NAME)),
    "user_input_name": ("the name", _is_text(_NAME)),
    "parameter_name": ("the name", _is_text(_PATH)),
    "buffer_name": ("the name", _is_text(_PATH)),
    "tensor_constant_name": ("the name", _is_text(_PATH)),
    "custom_obj_name": ("the name", _is_text(_PATH)),
    "path_name": ("the object", _is_text(_TENSOR_FILE)),
}
