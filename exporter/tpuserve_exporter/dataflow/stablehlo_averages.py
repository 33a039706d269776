"""Finds averages over rows in a StableHLO program, which a graph contains for a JAX or PyTorch model."""

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

# Operations between the exponentials of a softmax and their sum.
_OF_SOFTMAX = frozenset({"stablehlo.multiply", "stablehlo.convert", "stablehlo.select", "stablehlo.reshape"})
# Operations between that sum and the division by it.
_BETWEEN = frozenset({"stablehlo.abs", "stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim"})
_BETWEEN |= {"stablehlo.dynamic_broadcast_in_dim", "stablehlo.optimization_barrier"}


def find_averages(program: bytes, fed: Sequence[int], count: int) -> list[str] | None:
    """Return the places of sums over rows and of batch norms in training mode.

    Rows are the first dimension of the arguments that depend on inputs: numbers `fed` of the last `count`. Return None
    if jaxlib is missing or cannot read the program.
    """
    if importlib.util.find_spec("jaxlib") is None:
        return None
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        try:
            module = stablehlo.deserialize_portable_artifact(context, program)
        except (ValueError, ir.MLIRError):
            return None
        operations = list(_walk(module.operation))
        main = next(one for one in operations if one.name == "func.func" and _symbol(one) == "main")
        arguments = list(main.regions[0].blocks[0].arguments)[-count:]
        rows = {size for index in fed for size in _first_size(arguments[index])}
        return [f"{one.name} {_place(one)}".strip() for one in operations if _averages(one, rows)]


def _walk(operation: Any) -> Iterator[Any]:  # noqa: ANN401 - MLIR's bindings are untyped here
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for one in block.operations:
                yield from _walk(one.operation)


def _symbol(operation: Any) -> str:  # noqa: ANN401
    return str(operation.attributes["sym_name"].value)


def _averages(operation: Any, rows: set[int | None]) -> bool:  # noqa: ANN401
    if operation.name == "stablehlo.batch_norm_training":
        return True
    if operation.name != "stablehlo.reduce" or 0 not in list(operation.attributes["dimensions"]):
        return False
    taken = operation.operands[0]
    adds = [one.operation.name for one in operation.regions[0].blocks[0].operations]
    is_softmax = _is_of_powers(taken) and _divides(operation.results[0])
    return "stablehlo.add" in adds and bool(set(_first_size(taken)) & rows) and not is_softmax


def _first_size(value: Any) -> list[int | None]:  # noqa: ANN401
    """Return a list with the first dimension, or None if it is free. The list is empty for a scalar or a single row."""
    from jaxlib.mlir import ir

    shape = ir.RankedTensorType(value.type)
    if not shape.rank:
        return []
    if shape.is_dynamic_dim(0):
        return [None]
    return [shape.get_dim_size(0)] if shape.get_dim_size(0) > 1 else []


def _divides(value: Any) -> bool:  # noqa: ANN401
    """Return whether the program divides by `value` or takes its logarithm. In an average, `value` is divided."""
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses:
            owner = use.owner
            if owner.name == "stablehlo.log" or (owner.name == "stablehlo.divide" and use.operand_number == 1):
                return True
            if owner.name in _BETWEEN:
                waiting += owner.results
    return False


def _is_of_powers(value: Any) -> bool:  # noqa: ANN401
    from jaxlib.mlir import ir

    waiting = [value]
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, ir.Block):
            continue
        if owner.name == "stablehlo.exponential":
            return True
        if owner.name in _OF_SOFTMAX:
            waiting += owner.operands
    return False


def _place(operation: Any) -> str:  # noqa: ANN401
    """Return the operation's name in the source code, or an empty string if the program has none."""
    text = str(operation.location)
    return text.split('"')[1] if text.startswith('loc("') and "/" in text.split('"')[1] else ""
