"""Operation: a function of the zoo with a single operation, and the inputs of its signature."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from tpuserve_server.core.terms.types import Array

# Sizes of the named dimensions of a valid request. All other names are SIZE.
SIZES: Final = {"N": 2, "H": 6, "W": 5, "D": 4, "T": 3}
SIZE = 3
DTYPES: Final[dict[str, "np.dtype[Any]"]] = {
    "f": np.dtype(np.float32),
    "i": np.dtype(np.int32),
    "l": np.dtype(np.int64),
    "u": np.dtype(np.uint8),
    "b": np.dtype(np.bool_),
    "c": np.dtype(np.complex64),
    "s": np.dtype(object),
}


@dataclass(frozen=True, slots=True)
class Input:
    """An input: its dtype, its dimensions (a name for a free one), and the value of every element."""

    dtype: "np.dtype[Any]"
    dims: tuple[str | int, ...]
    value: object

    @property
    def free(self) -> tuple[int, ...]:
        """Indices of the free dimensions."""
        return tuple(index for index, dim in enumerate(self.dims) if isinstance(dim, str))

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape in the signature."""
        return tuple(None if isinstance(dim, str) else dim for dim in self.dims)

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape with these sizes of named dimensions."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)

    def filled(self, shape: tuple[int, ...]) -> Array:
        """Return an array of this shape. Floats differ, so that a wrong order shows."""
        if self.value is None and self.dtype.kind in "fc":
            count = int(np.prod(shape, dtype=object)) if shape else 1
            return (np.arange(count, dtype=np.float32) % 7 / 7 + 0.125).astype(self.dtype).reshape(shape)
        value = (b"a b" if self.dtype.hasobject else 1) if self.value is None else self.value
        return np.full(shape, value, self.dtype)


@dataclass(frozen=True, slots=True)
class Operation:
    """A model of the zoo. `build` gets the inputs by name, and returns one tensor or several by name."""

    name: str
    inputs: Mapping[str, Input]
    build: Callable[..., Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    # Whether equal requests get equal answers.
    repeats: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free dimensions, in order."""
        return tuple(dict.fromkeys(dim for one in self.inputs.values() for dim in one.dims if isinstance(dim, str)))

    @property
    def valid(self) -> dict[str, int]:
        """Sizes of the free dimensions in a valid request."""
        return {name: self.sizes.get(name, SIZES.get(name, SIZE)) for name in self.names}


def operation(
    name: str,
    build: Callable[..., Any],
    *,
    repeats: bool = True,
    sizes: Mapping[str, int] | None = None,
    values: Mapping[str, bytes] | None = None,
    **inputs: str,
) -> Operation:
    """Return an operation whose inputs are written like `f N,H,3`, or `l N=0` with the value of every element.

    `values` are those of inputs of bytes.
    """
    return Operation(name, read_inputs(inputs, values or {}), build, sizes or {}, repeats)


def read_inputs(texts: Mapping[str, str], values: Mapping[str, bytes] = MappingProxyType({})) -> dict[str, Input]:
    """Return the inputs that `texts` describe, as in `operation`."""
    return {name: _input(text, values.get(name)) for name, text in texts.items()}


def _input(text: str, given: bytes | None) -> Input:
    text, _, value = text.partition("=")
    code, _, dims = text.partition(" ")
    dtype = DTYPES[code]
    parsed = tuple(int(dim) if dim.isdecimal() else dim for dim in dims.split(",") if dim)
    read: object = given
    if value:
        read = value.encode() if dtype.hasobject else float(value)
    return Input(dtype, parsed, read)
