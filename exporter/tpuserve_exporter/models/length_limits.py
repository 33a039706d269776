"""Limits of free lengths: the sizes at which a model looks up its own positions beyond the end of a table.

JAX answers such a lookup with NaN or with the last row, where torch raises an error. The positions are those that
depend on the size of an input and on no value: `table[arange(length)]`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuserve_exporter.models.jax_function import TRIED_LENGTH

# The search ends at this multiple of the largest table. A patch or a stride maps several sizes to one position.
_BEYOND = 32
# The search also ends at this number of looked up positions, such as those of all pairs.
_MOST_POSITIONS = 1 << 24
# Operations that call a function with their own operands.
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call"}
)
_FUNCTIONS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def find_limits(jaxpr: Any, scope: Any, names: Sequence[str]) -> dict[str, int]:  # noqa: ANN401 - jax is untyped here
    """Return the limit of each free dimension of `names` that has one.

    `jaxpr` is a closed jaxpr, whose free sizes have these names in `scope`.
    """
    import jax
    import jax.numpy as jnp
    from jax import export

    walk = _Walk()
    sizes = {name: jax.ShapeDtypeStruct(export.symbolic_shape(f"({name},)", scope=scope), bool) for name in names}

    def look(sizes: Mapping[str, Any]) -> tuple[Any, Any]:
        del sizes  # they give the free dimensions their sizes
        found = walk.lookups(jaxpr)
        rooms = [one.room for one in found]
        return jnp.min(jnp.array(rooms)) if rooms else 0, sum((one.count for one in found), np.float32(0))

    program = export.export(jax.jit(look), platforms=("cpu",))(sizes)
    if not walk.largest_table:
        return {}

    def measure(name: str, size: int) -> tuple[int, float]:
        given = {one: np.zeros(size if one == name else min(size, TRIED_LENGTH), bool) for one in names}
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            room, count = program.call(given)
        return int(room), float(count)

    found = {name: _search(functools.partial(measure, name), walk.largest_table) for name in names}
    return {name: limit for name, limit in found.items() if limit}


def _search(measure: Callable[[int], tuple[int, float]], table: int) -> int | None:
    """Return the largest size before the first one outside, 0 if no size fits, or None without a size outside.

    `measure` returns the room of a size and the number of its positions. Most models have one position a size, so that
    the room of the first size leads to the limit.
    """
    fits, size = 0, TRIED_LENGTH
    room, count = measure(size)
    fits, size = (size, size + room + 1) if room >= 0 else (fits, size)
    while room >= 0:
        if size > _BEYOND * table or count > _MOST_POSITIONS:
            return None
        room, count = measure(size)
        fits, size = (size, 2 * size) if room >= 0 else (fits, size)
    middle = size - 1
    while size - fits > 1:
        fits, size = (middle, size) if measure(middle)[0] >= 0 else (fits, middle)
        middle = (fits + size) // 2
    return fits


@dataclass(frozen=True, slots=True)
class _Known:
    """A value that depends on sizes alone. `moves` is false for a constant."""

    value: Any
    moves: bool


@dataclass(frozen=True, slots=True)
class _Lookup:
    """The rows between the last position and the table's end, below 0 outside, and the number of positions."""

    room: Any
    count: Any


class _Walk:
    """Computes the part of a jaxpr that depends on sizes alone, within a trace with the same free sizes."""

    def __init__(self) -> None:
        self.largest_table = 0

    def lookups(self, closed: Any) -> list[_Lookup]:  # noqa: ANN401 - jax is untyped here, and below
        found = list[_Lookup]()
        self._run(closed.jaxpr, closed.consts, [None] * len(closed.jaxpr.invars), found)
        return found

    def _run(
        self,
        jaxpr: Any,  # noqa: ANN401
        constants: Sequence[Any],
        given: Sequence[_Known | None],
        found: list[_Lookup],
    ) -> list[_Known | None]:
        from jax.extend.core import Literal

        known: dict[Any, _Known | None] = {
            **dict(zip(jaxpr.constvars, (_Known(one, False) for one in constants), strict=True)),
            **dict(zip(jaxpr.invars, given, strict=True)),
        }

        def read(atom: Any) -> _Known | None:  # noqa: ANN401
            return _Known(atom.val, False) if isinstance(atom, Literal) else known.get(atom)

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            if equation.primitive.name == "gather" and (index := operands[1]) is not None and index.moves:
                found += self._look(equation, index.value)
            results = self._apply(equation, operands, found)
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _apply(
        self,
        equation: Any,  # noqa: ANN401
        operands: Sequence[_Known | None],
        found: list[_Lookup],
    ) -> Sequence[_Known | None]:
        """Return the results of an equation, or None for each that depends on more than sizes."""
        if equation.primitive.name in _CALLS:
            inner = next(equation.params[name] for name in _FUNCTIONS if name in equation.params)
            return self._run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands, found)
        values = [one.value for one in operands if one is not None]
        if len(values) < len(operands) or equation.effects:
            return [None] * len(equation.outvars)
        returned = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
        moves = any(one.moves for one in operands if one is not None) or any(map(_is_free, equation.outvars))
        moves = moves or equation.primitive.name == "dim_as_value"
        return [_Known(one, moves) for one in (returned if equation.primitive.multiple_results else [returned])]

    def _look(self, equation: Any, index: Any) -> Iterator[_Lookup]:  # noqa: ANN401
        """Yield a lookup in a table of a fixed size, unless the model's code limits the positions (mode="clip")."""
        import jax.numpy as jnp
        from jax.lax import GatherScatterMode

        axes = equation.params["dimension_numbers"].start_index_map
        shape, slices = equation.invars[0].aval.shape, equation.params["slice_sizes"]
        if equation.params["mode"] is GatherScatterMode.CLIP:
            return
        for position, axis in enumerate(axes):
            if not isinstance(shape[axis], int) or not isinstance(slices[axis], int):
                continue
            self.largest_table = max(self.largest_table, shape[axis])
            one = index[..., position]
            room = jnp.where(jnp.any(one < 0), -1, shape[axis] - slices[axis] - jnp.max(one)).astype(jnp.int32)
            yield _Lookup(room, jnp.sum(jnp.ones_like(one, jnp.float32)))


def _is_free(variable: Any) -> bool:  # noqa: ANN401
    return any(not isinstance(size, int) for size in getattr(variable.aval, "shape", ()))
