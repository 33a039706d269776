"""Lookups in a StableHLO program: the tables that its arguments index, and a program that returns the indices.

jaxlib's MLIR bindings are private, and jaxlib may be missing. Then a program has no known lookups.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Columns of an argument's last dimension, or None for all.
Columns = tuple[int, ...] | None

_GATHERS = ("stablehlo.gather", "stablehlo.dynamic_gather")
# Operations that keep the values of floats. Integers pass through any operation.
_KEEPING = frozenset(
    f"stablehlo.{name}"
    for name in ("convert", "reshape", "dynamic_reshape", "broadcast_in_dim", "dynamic_broadcast_in_dim", "transpose")
)
# Operations that keep the columns of their operand, if the last dimension keeps its size.
_KEEPING_COLUMNS = ("convert", "reshape", "select", "add", "subtract", "maximum", "minimum", "clamp", "remainder")
_COLUMNWISE = frozenset(f"stablehlo.{name}" for name in (*_KEEPING_COLUMNS, "abs", "and"))
_ENDS = frozenset({"stablehlo.iota", "stablehlo.constant", "stablehlo.get_dimension_size", "stablehlo.dot_general"})

# MLIR's bindings are untyped here.
_Value = Any


_DTYPES = {
    f"{sign}{bits}": f"{name}{bits}" for sign, name in (("i", "int"), ("ui", "uint")) for bits in (8, 16, 32, 64)
}


@dataclass(frozen=True, slots=True)
class Probe:
    """A serialized program that returns row numbers of the dtypes `dtypes`, by TensorFlow's names."""

    module: bytes
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramLookup:
    """One lookup in a table of `rows` rows. `arguments` are the numbers of the arguments that index it.

    `table` is the number of the argument that is the table, or None for a constant, one-hot numbers or activations.
    `result` is the number of the indices among the results of the program that returns them. It is None for a lookup
    in no argument, and within a loop.
    """

    rows: int
    arguments: tuple[tuple[int, Columns], ...]
    table: int | None
    result: int | None


def read_lookups(program: bytes, count: int, fed: set[int]) -> tuple[list[ProgramLookup], Probe | None]:
    """Return the lookups by the arguments `fed`, numbers among the last `count`, and a program that returns indices."""
    try:
        return _read(program, count, fed)
    except Exception:  # a private interface may change in any way, and jaxlib may not be installed
        return [], None


def _read(program: bytes, count: int, fed: set[int]) -> tuple[list[ProgramLookup], Probe | None]:
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, program)
        functions = {one.sym_name.value: one for one in module.body.operations}
        block = functions["main"].regions[0].blocks[0]
        _inline(block, functions)
        walk = _Walk(len(block.arguments) - count, fed, block)
        found = [one for operation in _operations(block) for one in walk.lookups(operation)]
        return found, _returning(module, functions["main"], walk.probes) if walk.probes else None


def _inline(block: Any, functions: dict[str, Any]) -> None:  # noqa: ANN401
    """Replace the calls in a block, also within its loops and branches, by the functions.

    MLIR's own pass needs an extension that jaxlib lacks.
    """
    calls = [one for one in _operations(block) if one.name == "func.call"]
    for call in calls:
        _inline_call(call, functions[call.attributes["callee"].value].regions[0].blocks[0])
    if calls:
        _inline(block, functions)


def _inline_call(call: Any, body: Any) -> None:  # noqa: ANN401
    from jaxlib.mlir import ir

    replaced = dict(zip(body.arguments, call.operands, strict=True))
    for one in body.operations:
        operation = one.operation
        if operation.name == "func.return":
            for result, value in zip(call.results, operation.operands, strict=True):
                result.replace_all_uses_with(replaced.get(value, value))
            continue
        with ir.InsertionPoint(call):
            copy = operation.clone()
        _replace(copy.operation, replaced)
        replaced.update(zip(operation.results, copy.operation.results, strict=True))
    call.erase()


def _replace(operation: Any, values: Mapping[Any, Any]) -> None:  # noqa: ANN401
    for index, operand in enumerate(operation.operands):
        if operand in values:
            operation.operands[index] = values[operand]
    for region in operation.regions:
        for block in region.blocks:
            for one in block.operations:
                _replace(one.operation, values)


def _operations(block: Any) -> Iterator[Any]:  # noqa: ANN401
    for one in block.operations:
        yield one.operation
        for region in one.operation.regions:
            for inner in region.blocks:
                yield from _operations(inner)


class _Walk:
    """Walks back from indices to arguments. `ahead` arguments of the program precede those of the node."""

    def __init__(self, ahead: int, fed: set[int], block: Any) -> None:  # noqa: ANN401
        self._ahead = ahead
        self._fed = fed
        self._block = block
        self.probes: list[_Value] = []

    def lookups(self, operation: Any) -> Iterator[ProgramLookup]:  # noqa: ANN401
        for rows, index, table in _indices_of(operation):
            arguments = tuple(sorted(self._arguments(index).items(), key=str))
            if arguments and rows > 1:
                number = _argument(table, self._block) if table is not None else None
                fixed = None if number is None or number - self._ahead in self._fed else number - self._ahead
                yield ProgramLookup(rows, arguments, fixed, None if fixed is None else self._probe(index))

    def _probe(self, index: _Value) -> int | None:
        """Return the number of a new result, or None for a value within a loop or a branch."""
        from jaxlib.mlir import ir

        owner = index.owner
        if (owner if isinstance(owner, ir.Block) else owner.operation.block) != self._block:
            return None
        self.probes.append(index)
        return len(self.probes) - 1

    def _arguments(self, index: _Value) -> dict[int, Columns]:
        from jaxlib.mlir import ir

        found: dict[int, Columns] = {}
        waiting: list[tuple[_Value, Columns]] = [(index, None)]
        seen = set[tuple[int, Columns]]()
        while waiting:
            value, columns = waiting.pop()
            if (hash(value), columns) in seen:
                continue
            seen.add((hash(value), columns))
            if not isinstance(value.owner, ir.Block):
                waiting += _operands(value.owner.operation, columns)
            elif value.owner == self._block:
                number = ir.BlockArgument(value).arg_number - self._ahead
                if number in self._fed:
                    found[number] = _join(found[number], columns) if number in found else columns
            elif (loop := value.owner.owner.operation).name == "stablehlo.while":
                number = ir.BlockArgument(value).arg_number
                body = loop.regions[1].blocks[0].operations
                waiting += [(one.operands[number], columns) for one in (loop, body[len(body) - 1].operation)]
        return found


def _join(first: Columns, second: Columns) -> Columns:
    return None if first is None or second is None else tuple(sorted({*first, *second}))


def _indices_of(operation: Any) -> Iterator[tuple[int, _Value, _Value | None]]:  # noqa: ANN401
    """Yield the number of rows, the indices and the table of each lookup that an operation is."""
    if operation.name in _GATHERS:
        axes = _numbers(operation, "start_index_map")
        shape = operation.operands[0].type.shape
        table = operation.operands[0] if len(axes) == 1 else None
        yield min(shape[axis] for axis in axes), operation.operands[1], table
    elif operation.name == "stablehlo.dynamic_slice":
        table, *starts = operation.operands
        sizes = zip(table.type.shape, operation.attributes["slice_sizes"], strict=True)
        for start, (rows, size) in zip(starts, sizes, strict=True):
            yield rows - size + 1, start, table if size == 1 else None
    elif operation.name == "stablehlo.compare" and "EQ" in str(operation.attributes["comparison_direction"]):
        for number in (0, 1):
            extent = _iota(operation.operands[1 - number])
            if extent:
                yield extent, operation.operands[number], None


def _numbers(operation: Any, name: str) -> list[int]:  # noqa: ANN401
    """Read `name = [0, 1]` of a gather's dimension numbers, which have no Python accessor in all releases."""
    text = str(operation.attributes["dimension_numbers"])
    inner = text.partition(f"{name} = [")[2].partition("]")[0]
    return [int(one) for one in inner.split(",") if one.strip()]


def _iota(value: _Value) -> int:
    """Return the extent of the numbers 0 to n-1 that one-hot numbers compare with, or 0."""
    from jaxlib.mlir import ir

    while not isinstance(value.owner, ir.Block):
        operation = value.owner.operation
        if operation.name == "stablehlo.iota":
            axis = ir.IntegerAttr(operation.attributes["iota_dimension"]).value
            return max(0, int(operation.results[0].type.shape[axis]))
        if operation.name not in _KEEPING:
            return 0
        value = operation.operands[0]
    return 0


def _operands(operation: Any, columns: Columns) -> Iterator[tuple[_Value, Columns]]:  # noqa: ANN401
    """Yield the operands whose values the result has or is computed from, with their columns."""
    if operation.name in _ENDS:
        return
    taken = list(operation.operands)
    if operation.name in _GATHERS or operation.name.endswith(("slice", "reshape", "broadcast_in_dim")):
        taken = taken[:1]  # the others are positions and shapes
    chosen = _chosen(operation)
    for operand in taken:
        kind = str(operand.type.element_type) if hasattr(operand.type, "element_type") else ""
        if kind.startswith(("i", "ui", "si")) and kind != "i1":
            yield operand, _columns_before(operation, operand, columns, chosen)
        elif kind.startswith(("f", "bf")) and operation.name in _KEEPING:
            yield operand, None


def _columns_before(operation: Any, operand: _Value, columns: Columns, chosen: Columns) -> Columns:  # noqa: ANN401
    if chosen is not None:
        return chosen if columns is None else tuple(chosen[one] for one in columns if one < len(chosen))
    shapes = (operand.type.shape, operation.results[0].type.shape)
    same = operation.name in _COLUMNWISE and shapes[0] and shapes[0][-1:] == shapes[1][-1:]
    return columns if same else None


def _chosen(operation: Any) -> Columns:  # noqa: ANN401
    """Return the columns that a slice, or a gather with a constant index, takes of its operand."""
    if operation.name == "stablehlo.slice":
        first, end, step = (
            list(operation.attributes[name])[-1] for name in ("start_indices", "limit_indices", "strides")
        )
        return tuple(range(first, end, step))
    if operation.name in _GATHERS:
        last = len(operation.operands[0].type.shape) - 1
        index = _constant(operation.operands[1]) if _numbers(operation, "start_index_map") == [last] else None
        return None if index is None else (index,)
    if operation.name == "stablehlo.dynamic_slice":
        index = _constant(operation.operands[-1])
        size = list(operation.attributes["slice_sizes"])[-1]
        return None if index is None else tuple(range(index, index + size))
    if operation.name == "stablehlo.real_dynamic_slice":
        first, end = (_constant_at_end(one) for one in operation.operands[1:3])
        return None if first is None or end is None else tuple(range(first, end))
    return None


def _constant_at_end(value: _Value) -> int | None:
    """Return the last number of a vector, which may be a concatenation of sizes."""
    from jaxlib.mlir import ir

    if not isinstance(value.owner, ir.Block) and value.owner.operation.name == "stablehlo.concatenate":
        return _constant(list(value.owner.operation.operands)[-1])
    return _constant(value)


def _constant(value: _Value) -> int | None:
    from jaxlib.mlir import ir

    while not isinstance(value.owner, ir.Block):
        operation = value.owner.operation
        if operation.name == "stablehlo.constant":
            return int(list(ir.DenseIntElementsAttr(operation.attributes["value"]))[-1])
        if operation.name not in _KEEPING:
            return None
        value = operation.operands[0]
    return None


def _argument(value: _Value, block: Any) -> int | None:  # noqa: ANN401
    """Return the number of the program's argument that a table is, possibly converted or reshaped."""
    from jaxlib.mlir import ir

    while not isinstance(value.owner, ir.Block):
        if value.owner.operation.name not in _KEEPING:
            return None
        value = value.owner.operation.operands[0]
    return ir.BlockArgument(value).arg_number if value.owner == block else None


def _returning(module: Any, main: Any, values: list[_Value]) -> Probe:  # noqa: ANN401
    """Return the module with `values` as the results of its function, without what only the old results needed."""
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import func, stablehlo

    block = main.regions[0].blocks[0]
    block.operations[len(block.operations) - 1].erase()
    with ir.InsertionPoint(block), ir.Location.unknown():
        func.ReturnOp(values)
    inputs = [argument.type for argument in block.arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, [one.type for one in values]))
    with contextlib.suppress(KeyError):
        del main.attributes["res_attrs"]
    passmanager.PassManager.parse("builtin.module(canonicalize,symbol-dce)").run(module.operation)
    age = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    version = stablehlo.get_version_from_compatibility_requirement(age)
    dtypes = tuple(_DTYPES[str(one.type.element_type)] for one in main.regions[0].blocks[0].operations[-1].operands)
    return Probe(bytes(stablehlo.serialize_portable_artifact(module, version)), dtypes)
