"""A version's answer to one row: the best classes by label, and short forms of all outputs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuserve_exporter.checks.difference import is_float
from tpuserve_exporter.terms.signature import Array, Tensors

_MOST_RANKED = 5
# Usual names of class scores. They decide among several outputs.
_USUAL_SCORES = ("scores", "probabilities", "predictions", "logits")
_CLASSES = "classes"


@dataclass(frozen=True, slots=True)
class RankedClass:
    """A class by its index in the scores. `label` is empty if it has none."""

    index: int
    label: str
    score: float

    def __str__(self) -> str:
        return f"{self.label or f'class {self.index}'} {self.score:.3g}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields. A score that is NaN or infinite becomes None, because JSON lacks it."""
        score = self.score if math.isfinite(self.score) else None
        return {"index": self.index, "label": self.label or None, "score": score}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A version's answer to one row. `ranked` are the best classes, best first, or empty if no output has scores.

    `count` is the number of classes. `texts` are the outputs with a single string.
    """

    ranked: tuple[RankedClass, ...]
    count: int
    texts: tuple[str, ...]
    outputs: Mapping[str, str]

    @classmethod
    def read(cls, outputs: Tensors, labels: Sequence[str]) -> "Prediction":
        """Read the outputs of one row. A NaN score ranks first, as for numpy's argmax."""
        arrays = {name: np.asarray(value) for name, value in outputs.items()}
        scores = _find_scores(arrays)
        names = _find_names(arrays, scores, labels)
        texts = [_text(value) for name, value in arrays.items() if _is_text(value) and value.size == 1]
        order = [] if scores is None else _rank(scores)[:_MOST_RANKED]
        ranked = [RankedClass(one, names[one] if names else "", float(scores[one])) for one in order]  # type: ignore[index]  # without scores there is no order
        shown = {name: describe_array(value) for name, value in arrays.items()}
        return cls(tuple(ranked), 0 if scores is None else len(scores), tuple(texts), shown)

    def __str__(self) -> str:
        """Return `top 3: tabby 0.9, …`, or the outputs."""
        if self.ranked:
            return f"top {len(self.ranked[:3])}: {', '.join(map(str, self.ranked[:3]))}"
        return ", ".join(f"{name}: {value}" for name, value in self.outputs.items())

    def to_json(self) -> dict[str, Any]:
        return {"top": [one.to_json() for one in self.ranked], "outputs": dict(self.outputs)}


def _find_scores(outputs: Mapping[str, Array]) -> Array | None:
    """Find the only output with the shape of scores, or the one with a usual name."""
    fitting: dict[str, Array] = {
        name: value[0].astype(np.float64)
        for name, value in outputs.items()
        if value.ndim == 2 and value.shape[0] == 1 and value.shape[1] > 1 and is_float(value)
    }
    usual = [name for name in _USUAL_SCORES if name in fitting]
    if usual or len(fitting) == 1:
        return fitting[(usual or list(fitting))[0]]
    return None


def _find_names(outputs: Mapping[str, Array], scores: Array | None, labels: Sequence[str]) -> Sequence[str]:
    """Return the version's own class names, else the labels, or nothing if their number differs from the scores'."""
    count = 0 if scores is None else len(scores)
    names = outputs.get(_CLASSES)
    if names is not None and _is_text(names) and names.shape == (1, count):
        return [_text(one) for one in names[0]]
    return labels if len(labels) == count else ()


def _rank(scores: Array) -> list[int]:
    order: list[int] = np.argsort(np.where(np.isnan(scores), -np.inf, -scores), kind="stable").tolist()
    return order


def _is_text(value: Array) -> bool:
    return value.dtype.kind in "OSU"


def _text(value: Any) -> str:  # noqa: ANN401 - bytes, or an array of one
    content = np.asarray(value).reshape(-1)[0]
    return content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else str(content)


def describe_array(value: Array) -> str:
    """Return `float32[1, 3]: [[0.1, 0.2, 0.7]]`, cut if it is long."""
    plain = np.array([_text(one) for one in value.reshape(-1)[:20]], object) if _is_text(value) else value
    shown = np.array2string(plain, precision=4, threshold=8, edgeitems=3, separator=", ", max_line_width=10**6)
    kind = "string" if _is_text(value) else value.dtype.name
    return f"{kind}[{', '.join(map(str, value.shape))}]: {' '.join(shown.split())}"
