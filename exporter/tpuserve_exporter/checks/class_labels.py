"""Labels of a file, as class numbers in the shape of an output."""

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.terms.signature import Array


class ClassLabels:
    """Reads labels of classes: numbers, names, or one-hot rows. Counts rows, to name the row of a wrong label."""

    def __init__(self, names: Sequence[str], ignored: int) -> None:
        self._names = list(names)
        self._index = {name.encode(): index for index, name in enumerate(names)}
        self._ignored = ignored
        self._rows = 0

    def read(self, labels: Array, shape: tuple[int, ...], classes: int) -> tuple[Array, Array]:
        """Return class numbers of this shape, and whether each counts. Every counted one is below `classes`."""
        if classes > 1 and labels.shape == (*shape, classes):
            labels = self._from_one_hot(labels)
        numbers = self._numbers(fit_labels(labels, shape))
        counts = numbers != self._ignored
        wrong = counts & ((numbers < 0) | (numbers >= classes))
        if wrong.any():
            row = tuple(np.argwhere(wrong)[0])
            raise SamplesUnfit(
                f"label {numbers[row]} in row {self._rows + int(row[0])} is no class: the output has classes 0 to "
                f"{classes - 1}. Number labels from 0. {self._ignored} (--ignore-label) marks those that do not count"
            )
        self._rows += len(numbers)
        return numbers, counts

    def _from_one_hot(self, labels: Array) -> Array:
        if labels.dtype.kind not in "iufb" or not (
            ((labels == 0) | (labels == 1)).all() and (labels.sum(-1) == 1).all()
        ):
            raise SamplesUnfit("labels have the shape of the scores, but are not one-hot. Give class numbers")
        numbers: Array = labels.argmax(-1)
        return numbers

    def _numbers(self, labels: Array) -> Array:
        if labels.dtype.kind in "SUO":
            numbers: Array = np.vectorize(self._find, otypes=[np.int64])(labels)
            return numbers
        if labels.dtype.kind not in "iufb" or (labels.dtype.kind == "f" and not (labels == np.floor(labels)).all()):
            raise SamplesUnfit(f"labels of classes need whole numbers or names, but have {labels.dtype}")
        return labels.astype(np.int64)

    def _find(self, label: Any) -> int:  # noqa: ANN401 - an element of any array of strings
        name = label if isinstance(label, bytes) else str(label).encode()
        if (index := self._index.get(name)) is not None:
            return index
        shown = name.decode(errors="replace")
        if not self._names:
            raise SamplesUnfit(f"label {shown!r} is a name, but the classes have no names. Use --labels FILE")
        near = difflib.get_close_matches(shown, self._names, n=1)
        raise SamplesUnfit(
            f"label {shown!r} is no class of the model" + (f". Did you mean {near[0]!r}?" if near else "")
        )


def fit_labels(labels: Array, shape: tuple[int, ...]) -> Array:
    """Return labels in `shape`, which may only add or drop dimensions of 1. Raises SamplesUnfit."""
    if labels.shape != shape and [one for one in labels.shape if one != 1] != [one for one in shape if one != 1]:
        raise SamplesUnfit(f"labels have shape {list(labels.shape)}, but the output needs {list(shape)}")
    return labels.reshape(shape)
