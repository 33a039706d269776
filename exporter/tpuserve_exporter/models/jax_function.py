"""The common form of JAX sources: a function of parameters and named inputs, with a reference run on the CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tpuserve_exporter.terms.signature import Signature, Tensors

if TYPE_CHECKING:
    import tensorflow as tf

# A JAX pytree of arrays (dictionaries, lists, Flax states).
PyTree: TypeAlias = Any
# Size of free dimensions, other than rows, where a model must run once without real inputs.
TRIED_LENGTH = 8


@dataclass(frozen=True, slots=True)
class JaxInput:
    """One input. `dims` are sizes, or names of free dimensions. Dimensions with one name have equal sizes in a request.

    A free first dimension holds the rows, independent of its name.
    """

    dtype: str
    dims: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"

    @property
    def has_rows(self) -> bool:
        return bool(self.dims) and isinstance(self.dims[0], str)

    @property
    def free_axes(self) -> tuple[int, ...]:
        """The free dimensions after the first one."""
        return tuple(axis for axis, dim in enumerate(self.dims) if axis > 0 and isinstance(dim, str))

    @property
    def lengths(self) -> tuple[str, ...]:
        """The names of the free dimensions after the first one."""
        return tuple(str(self.dims[axis]) for axis in self.free_axes)

    def sized(self, rows: int, length: int | None = None) -> "JaxInput":
        """Return the input with its first dimension fixed to `rows`, if free, and the others to `length`, if given."""
        rest = [dim if length is None or isinstance(dim, int) else length for dim in self.dims[1:]]
        return JaxInput(self.dtype, (rows if self.has_rows else self.dims[0], *rest)) if self.dims else self

    def spec(self, name: str) -> "tf.TensorSpec":
        import tensorflow as tf

        return tf.TensorSpec([None if isinstance(dim, str) else dim for dim in self.dims], self.dtype, name=name)

    def polymorphic_shape(self) -> str:
        """Return the shape in the syntax of jax.export: `(rows, length, 64)`."""
        named = ["rows" if axis == 0 and isinstance(dim, str) else str(dim) for axis, dim in enumerate(self.dims)]
        return f"({', '.join(named)}{',' if len(named) == 1 else ''})"


@dataclass(frozen=True, slots=True)
class JaxFunction:
    """A model as `call(params, inputs)`, which takes two dictionaries of arrays and returns one. jax.jit can trace it.

    `params` holds arrays of numpy or JAX by name. `scalars` are the numbers of the parameter tree, which `call` holds
    itself. With `traced`, `call` is an exported program without Python code. `limits` has the largest size of each free
    dimension that has one, except of rows.
    """

    call: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
    params: Mapping[str, Any]
    inputs: Mapping[str, JaxInput]
    traced: bool = False
    scalars: Mapping[str, complex] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The limits of free dimensions in the syntax of jax.export: `length <= 512`."""
        return tuple(f"{name} <= {limit}" for name, limit in self.limits.items())

    @property
    def lengths(self) -> tuple[str, ...]:
        """The names of the free dimensions, except of rows."""
        return tuple(dict.fromkeys(name for one in self.inputs.values() for name in one.lengths))

    def limited(self, limits: Mapping[str, int]) -> "JaxFunction":
        """Return the function with these limits, too."""
        both = {name: min(limit, self.limits.get(name, limit)) for name, limit in limits.items()}
        return replace(self, limits={**self.limits, **both})

    @property
    def batched(self) -> tuple[str, ...]:
        """The names of the inputs that have rows."""
        return tuple(name for name, one in self.inputs.items() if one.has_rows)


class JaxReference:
    """The source function in JAX, compiled for the CPU on every machine, to compare the version's outputs with."""

    def __init__(self, function: JaxFunction) -> None:
        import jax

        self._device = jax.local_devices(backend="cpu")[0]
        self._params: Mapping[str, Any] | None = jax.device_put(dict(function.params), self._device)
        self._call = jax.jit(function.call)

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. The function has one signature, so it ignores `signature`."""
        import jax

        with jax.default_device(self._device):
            outputs = self._call(self._params, {name: np.asarray(value) for name, value in inputs.items()})
        return {name: np.asarray(value) for name, value in outputs.items()}

    def release(self) -> None:
        """Release the parameters. The caller must not call `run` afterwards."""
        self._params = None
        self._call.clear_cache()
