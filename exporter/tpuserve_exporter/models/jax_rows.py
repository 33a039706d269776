"""Detection of JAX functions whose Python code branches on the number of rows: `if rows % 2`, `if x.shape[0] == 4`.

With a symbolic number of rows, JAX evaluates a comparison that it cannot decide to False. The server would then run one
branch for all sizes. This module compares operations. Branches that differ only in constants show in the parity check.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Operations = tuple[str, ...]
# An odd size that few models test for. Together with powers of two it exposes `rows % 2`.
_ODD = 3


def goes_by_rows(operations_of: Callable[[int], Operations], batch_sizes: tuple[int, ...]) -> bool:
    """Return whether the function's operations change with the number of rows.

    A single row is not compared, because JAX broadcasts dimensions of size 1.
    """
    return len({operations_of(rows) for rows in {*batch_sizes, _ODD} if rows > 1}) > 1


def list_operations(
    call: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]],
    params: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> Operations:
    """List the function's operations for arguments of these shapes, in order, including nested functions and loops."""
    import jax

    return tuple(_walk(jax.jit(call).trace(params, inputs).jaxpr.jaxpr))


def _walk(jaxpr: Any) -> Iterator[str]:  # noqa: ANN401 - jax has no types here
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _walk(inner)
