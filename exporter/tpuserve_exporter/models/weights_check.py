"""Weights that are no numbers: a run that diverged leaves a checkpoint like any other, and it must not be served."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import WeightsNotFinite
from tpuserve_exporter.models.tree_path import name_of_variable
from tpuserve_exporter.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf

# Named in a message; the report lists all.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A variable with `nan` elements that are NaN and `infinite` ones, of `size`."""

    name: str
    nan: int
    infinite: int
    size: int

    def __str__(self) -> str:
        parts = [f"{count} {what}" for count, what in ((self.nan, "NaN"), (self.infinite, "infinite")) if count]
        return f"{self.name} ({', '.join(parts)} of {self.size})"


def find_not_finite(pairs: Iterable[tuple[str, Array]]) -> list[NotFinite]:
    """Variables, as name and value, that have elements which are NaN or infinite. Takes the values one by one."""
    counted = (_count(name, value) for name, value in pairs if _is_float(value.dtype))
    return [one for one in counted if one.nan or one.infinite]


def not_finite(found: Sequence[NotFinite]) -> WeightsNotFinite:
    """The error that says so of variables that were found."""
    return WeightsNotFinite(
        f"{describe(found)}. Training has diverged, or the file is damaged: export an earlier checkpoint, or give "
        "--allow-nan if the model is meant to have them",
        variables=[{"name": one.name, "nan": one.nan, "infinite": one.infinite, "size": one.size} for one in found],
    )


def describe(found: Sequence[NotFinite]) -> str:
    """Says which variables, and how many elements of them."""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"weights that are not finite: {', '.join(map(str, found[:_MOST_NAMED]))}{more}"


def named_values(trackables: Iterable[Any]) -> Iterator[tuple[str, Array]]:
    """Name and value of every variable that the trackables hold, each once; one value in memory at a time."""
    for name, variable in named_variables(trackables):
        yield name, np.asarray(variable.numpy())


def named_variables(trackables: Iterable[Any]) -> "Iterator[tuple[str, tf.Variable]]":
    """Every variable that the trackables hold, each once, by the name that its framework gives it."""
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
    """Where all is finite, as it nearly always is, one pass over the value."""
    if np.isfinite(value).all():
        return NotFinite(name, 0, 0, value.size)
    nan = int(np.isnan(value).sum())
    return NotFinite(name, nan, int(value.size - np.isfinite(value).sum()) - nan, value.size)


def _is_float(dtype: "np.dtype[Any]") -> bool:
    """Numpy's own floats, and those of ml_dtypes (bfloat16, float8), which numpy knows as kind V."""
    return dtype.kind in "fc" or "float" in dtype.name
