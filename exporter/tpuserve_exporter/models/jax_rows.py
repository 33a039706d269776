"""Whether a JAX function's own code goes by the number of its rows: `if rows % 2`, `if x.shape[0] == 4`.

With rows left free, JAX answers what it cannot know of them with False, and one of the two programs would be served for
all. What differs in numbers alone, and not in operations, is not seen here; the comparison with the source sees it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Operations = tuple[str, ...]
# Odd, and a size that few models go by: beside powers of two it shows what `rows % 2` does.
_ODD = 3


def goes_by_rows(operations_of: Callable[[int], Operations], batch_sizes: tuple[int, ...]) -> bool:
    """Whether its operations, by how many rows, are not always the same.

    Of a single row they may differ for the rest: JAX broadcasts what has a size of 1.
    """
    return len({operations_of(rows) for rows in {*batch_sizes, _ODD} if rows > 1}) > 1


def list_operations(
    call: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]],
    params: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> Operations:
    """What the function does with arguments of these shapes, in order, within its own functions and loops too."""
    import jax

    return tuple(_walk(jax.jit(call).trace(params, inputs).jaxpr.jaxpr))


def _walk(jaxpr: Any) -> Iterator[str]:  # noqa: ANN401 - jax has no types here
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _walk(inner)
