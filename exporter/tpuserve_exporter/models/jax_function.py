"""What JAX sources come to: a function of parameters and named inputs, and its answers on this machine's CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tpuserve_exporter.signature import Signature, Tensors

if TYPE_CHECKING:
    import tensorflow as tf

# A tree of arrays as JAX knows them (dictionaries, lists, Flax states).
PyTree: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class JaxInput:
    """One input. `dims` are sizes, or names of free dimensions: those of one name are of one size in a request.

    A free first dimension is that of the rows, whatever its name.
    """

    dtype: str
    dims: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"

    @property
    def has_rows(self) -> bool:
        return bool(self.dims) and isinstance(self.dims[0], str)

    def sized(self, rows: int) -> "JaxInput":
        """The same for `rows` rows."""
        return JaxInput(self.dtype, (rows, *self.dims[1:])) if self.has_rows else self

    def spec(self, name: str) -> "tf.TensorSpec":
        import tensorflow as tf

        return tf.TensorSpec([None if isinstance(dim, str) else dim for dim in self.dims], self.dtype, name=name)

    def polymorphic_shape(self) -> str:
        """As jax.export reads it: `rows, length, 64`."""
        named = ["rows" if axis == 0 and isinstance(dim, str) else str(dim) for axis, dim in enumerate(self.dims)]
        return f"({', '.join(named)}{',' if len(named) == 1 else ''})"


@dataclass(frozen=True, slots=True)
class JaxFunction:
    """`call(params, inputs)` takes two dictionaries of arrays and returns one; jax.jit can trace it.

    `params` holds arrays of numpy or JAX by name. `scalars` are the numbers of the tree that `call` holds itself.
    `traced`: `call` is a program, whose code decides nothing any more.
    """

    call: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
    params: Mapping[str, Any]
    inputs: Mapping[str, JaxInput]
    traced: bool = False
    scalars: Mapping[str, complex] = field(default_factory=dict)

    @property
    def batched(self) -> tuple[str, ...]:
        """Inputs that have rows."""
        return tuple(name for name, one in self.inputs.items() if one.has_rows)


class JaxReference:
    """JAX's own answers, on the CPU wherever the export runs, and compiled, as in training."""

    def __init__(self, function: JaxFunction) -> None:
        import jax

        self._device = jax.local_devices(backend="cpu")[0]
        self._params: Mapping[str, Any] | None = jax.device_put(dict(function.params), self._device)
        self._call = jax.jit(function.call)

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Outputs by name. `signature` is the one there is."""
        import jax

        with jax.default_device(self._device):
            outputs = self._call(self._params, {name: np.asarray(value) for name, value in inputs.items()})
        return {name: np.asarray(value) for name, value in outputs.items()}

    def release(self) -> None:
        """Drop the parameters. `run` does not work afterwards."""
        self._params = None
        self._call.clear_cache()
