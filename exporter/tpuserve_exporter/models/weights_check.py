"""The variables of a model: detection of NaN and infinite ones, and release of their memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import WeightsNotFinite
from tpuserve_exporter.models.tree_path import name_of_variable
from tpuserve_exporter.terms.signature import Array
from tpuserve_exporter.terms.texts import first

if TYPE_CHECKING:
    import tensorflow as tf

# The number of variables in a message. The report lists all.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A variable of `size` elements, of which `nan` are NaN and `infinite` are infinite."""

    name: str
    nan: int
    infinite: int
    size: int

    def __str__(self) -> str:
        parts = [f"{count} {what}" for count, what in ((self.nan, "NaN"), (self.infinite, "infinite")) if count]
        return f"{self.name} ({', '.join(parts)} of {self.size})"


def find_not_finite(pairs: Iterable[tuple[str, Array]]) -> list[NotFinite]:
    """Find variables with NaN or infinite elements among pairs of name and value. Reads one value at a time."""
    counted = (_count(name, value) for name, value in pairs if _is_float(value.dtype))
    return [one for one in counted if one.nan or one.infinite]


def not_finite(found: Sequence[NotFinite]) -> WeightsNotFinite:
    """Return the error for variables that are not finite."""
    return WeightsNotFinite(
        f"{describe(found)}. Training has diverged, or the file is damaged. Export an earlier checkpoint, or use "
        "--allow-nan if the model is meant to have such weights",
        variables=[{"name": one.name, "nan": one.nan, "infinite": one.infinite, "size": one.size} for one in found],
    )


def describe(found: Sequence[NotFinite]) -> str:
    """Describe the variables, with the number of NaN and infinite elements."""
    return f"some weights are not finite: {first(found, _MOST_NAMED)}"


def named_values(trackables: Iterable[Any]) -> Iterator[tuple[str, Array]]:
    """Yield name and value of every variable that the trackables hold, each once. Keeps one value in memory."""
    for name, variable in named_variables(trackables):
        yield name, np.asarray(variable.numpy())


def named_variables(trackables: Iterable[Any]) -> "Iterator[tuple[str, tf.Variable]]":
    """Yield every variable that the trackables hold, each once, with the name from its framework."""
    import keras
    import tensorflow as tf

    seen = set[int]()
    for root in trackables:
        for thing in tf.train.TrackableView(root).descendants():
            variable = thing.value if isinstance(thing, keras.Variable) else thing
            if isinstance(variable, tf.Variable) and id(variable) not in seen:
                seen.add(id(variable))
                own = name_of_variable(variable.name.removesuffix(":0"))
                name = thing.path if isinstance(thing, keras.Variable) else own
                yield name, variable


def _count(name: str, value: Array) -> NotFinite:
    """Count NaN and infinite elements. A finite value, the usual case, takes one pass."""
    if np.isfinite(value).all():
        return NotFinite(name, 0, 0, value.size)
    nan = int(np.isnan(value).sum())
    return NotFinite(name, nan, int(value.size - np.isfinite(value).sum()) - nan, value.size)


def _is_float(dtype: "np.dtype[Any]") -> bool:
    """Return whether a dtype is a float of numpy or of ml_dtypes (bfloat16 and float8, with numpy's kind V)."""
    return dtype.kind in "fc" or "float" in dtype.name


def release_weights(trackables: Iterable[Any]) -> None:
    """Assign an empty value to every variable that the trackables hold. The model is unusable afterwards."""
    import tensorflow as tf

    for _, variable in named_variables(trackables):
        empty = tf.constant([], variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty, validate_shape=False)
