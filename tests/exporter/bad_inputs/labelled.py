"""Labelled rows that do not fit a version, and metrics below their bounds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.exporter.bad_inputs.case import Case, Change, Section, write

_ROWS = "scorer.keras models/scorer --labelled rows.npz"
_CSV = "scorer.keras models/scorer --labelled rows.csv"
_ACCURACY = "--expect 'accuracy>=0.97'"
_FEATURES = np.random.default_rng(4).normal(0, 1, (40, 3)).astype(np.float32)


def make(folder: Path) -> None:
    """Save `scorer` with weights that classify a row by its first value, and rows with the other class as label."""
    from tests.exporter import builders

    model = builders.tiny()
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape))
    hidden, scores = (model.get_layer(name).kernel for name in ("hidden", "scores"))
    hidden.assign(np.eye(3, 4))
    scores.assign(np.eye(4, 2) @ np.array([[-1.0, 1.0], [0.0, 0.0]]))
    model.save(folder / "scorer.keras")
    _save(folder, {})


def _save(folder: Path, arrays: Mapping[str, Any]) -> None:
    usual: dict[str, Any] = {"features": _FEATURES, "label": (_FEATURES[:, 0] <= 0).astype(int)}
    np.savez(folder / "rows.npz", **{**usual, **arrays})


def _rows(**arrays: object) -> Change:
    return lambda folder: _save(folder, arrays)


SECTION = Section(
    "Metrics on labelled rows",
    "The exporter reads the names in the file before it reads the source. It evaluates the written version after "
    "all other checks.",
    make,
    (
        Case("Metric that does not meet its bound", 14, f"{_ROWS} {_ACCURACY}"),
        Case("Expectation without rows", 2, f"scorer.keras models/scorer {_ACCURACY}"),
        Case("Rows without an expectation", 2, _ROWS),
        Case("Unknown metric", 2, f"{_ROWS} --expect 'acc>=0.97'"),
        Case("Expectation without a bound", 2, f"{_ROWS} --expect accuracy"),
        Case("Bound in percent", 2, f"{_ROWS} --expect 'accuracy>=97'"),
        Case("Function of an unknown module", 7, f"{_ROWS} --expect 'metrics:f1>=0.8'"),
        Case("Wrong name of labels", 9, f"{_ROWS} {_ACCURACY} --label-key class"),
        Case("Labels without a likely name", 9, f"scorer.keras models/scorer --labelled other.npz {_ACCURACY}",
             lambda folder: np.savez(folder / "other.npz", features=_FEATURES, one=_FEATURES, two=_FEATURES)),
        Case("Wrong shape of an input", 9, f"{_ROWS} {_ACCURACY}", _rows(features=np.ones((40, 4)))),
        Case("Fewer labels than rows", 9, f"{_ROWS} {_ACCURACY}", _rows(label=np.zeros(39, int))),
        Case("No rows", 9, f"{_ROWS} {_ACCURACY}", _rows(features=np.ones((0, 3)), label=np.zeros(0))),
        Case("Classes from 1", 9, f"{_ROWS} {_ACCURACY}", _rows(label=np.arange(40) % 2 + 1)),
        Case("Labels that are names", 9, f"{_ROWS} {_ACCURACY}", _rows(label=np.array(["good", "bad"] * 20))),
        Case("Labels of another shape", 9, f"{_ROWS} --expect 'mae<=0.1'"),
        Case("Unknown output", 9, f"{_ROWS} --expect 'accuracy(logits)>=0.9'"),
        Case("Top-K of fewer classes", 9, f"{_ROWS} --expect 'top-5>=0.9'"),
        Case("CSV file with other columns", 9, f"{_CSV} {_ACCURACY}", write("rows.csv", "id,a,b,c,label\n7,1,2,3,0\n")),
        Case("CSV file with a short line", 9, f"{_CSV} {_ACCURACY}", write("rows.csv", "a,b,c,label\n1,2,3,0\n1,2\n")),
    ),
)  # fmt: skip
