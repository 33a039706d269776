"""The best classes of each row of scores, by label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuserve_client.dtypes import STRING, Array

_MOST = 5
# Usual names of outputs that contain class scores.
_USUAL = ("scores", "probabilities", "predictions", "logits")
# Output with the class names. The exporter's `classify` signatures return it with `scores`.
_CLASSES = "classes"
# Largest distance of a sum of probabilities from 1. Wide enough for float16.
_SUM_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class RankedClass:
    """A class, its index in the scores, and its score. `label` is None if the class has none."""

    index: int
    label: str | None
    score: float

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, "label": self.label, "score": self.score}


def could_be_ranked(outputs: Mapping[str, Array]) -> bool:
    """Return whether any output has the shape of class scores."""
    return any(_has_classes(array) for array in outputs.values())


def rank(outputs: Mapping[str, Array], labels: Sequence[str]) -> dict[str, list[list[RankedClass]]]:
    """Return the five best classes of each row, by output.

    An output contains scores if it has one column per label, if it has a usual name, or if each row sums to 1.
    """
    return {
        name: [_rank_row(row, _names(outputs, array, number, labels)) for number, row in enumerate(array)]
        for name, array in outputs.items()
        if _has_classes(array) and (len(labels) == array.shape[1] or name in _USUAL or _are_probabilities(array))
    }


def _has_classes(array: Array) -> bool:
    return array.ndim == 2 and array.shape[1] > 1 and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def _are_probabilities(array: Array) -> bool:
    values = array.astype(np.float64)
    return bool((values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=_SUM_TOLERANCE))


def _names(outputs: Mapping[str, Array], scores: Array, row: int, labels: Sequence[str]) -> Sequence[str]:
    """Return the class names in the response, or else the labels if there is one for each column."""
    classes = outputs.get(_CLASSES)
    if classes is not None and classes.dtype == STRING and classes.shape == scores.shape:
        return [name.decode("utf-8", "backslashreplace") for name in classes[row]]
    return labels if len(labels) == scores.shape[1] else ()


def _rank_row(row: Array, names: Sequence[str]) -> list[RankedClass]:
    scores = row.astype(np.float64)
    order = np.argsort(-scores, kind="stable")[:_MOST].tolist()
    return [RankedClass(index, names[index] if names else None, float(scores[index])) for index in order]
