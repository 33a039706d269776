"""Tests for the comparison of a version with its source: the report lists each comparison by output and bucket."""

from collections.abc import Callable

import numpy as np
import pytest

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.parity import ParityResult, compare_cases, require_parity
from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

pytestmark = [pytest.mark.xdist_group(__name__)]

SIGNATURE = Signature(
    "serving_default",
    {"x": TensorSpec("float32", (None, 2))},
    {"scores": TensorSpec("float32", (None, 2)), "length": TensorSpec("float32", (None,))},
)
ROWS = np.array([[0.0, 1.0], [2.0, 1.0], [0.5, 0.4], [3.0, 5.0], [1.0, 0.0]], np.float32)
LOOSE = Tolerance(atol=0.3, rtol=0.0)


class Model:
    """A model whose scores are the rows and their lengths, after `change`."""

    def __init__(self, change: Callable[[Array], Array] = lambda rows: rows) -> None:
        self._change = change

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        rows = inputs["x"]
        return {"scores": self._change(rows), "length": np.linalg.norm(rows, axis=1)}


def nudge(rows: Array) -> Array:
    """Add 0.2 to the second score in batches of two."""
    return rows + np.array([0.0, 0.2], np.float32) if len(rows) == 2 else rows


def check(change: Callable[[Array], Array], tolerance: Tolerance, sizes: tuple[int, ...] = (1, 2)) -> ParityResult:
    loaded = {"session": Model(change), "Python": Model()}
    return compare(loaded, tolerance, sizes)


def compare(loaded: dict[str, Model], tolerance: Tolerance, sizes: tuple[int, ...] = (1, 2)) -> ParityResult:
    """Compare and require parity, like an export."""
    result = compare_cases(SIGNATURE, {"x": ROWS}, sizes, Model(), loaded, tolerance, padded=True)
    require_parity(SIGNATURE, result, tolerance)
    return result


def test_differences_are_told_by_output_and_by_bucket() -> None:
    found = check(nudge, LOOSE).to_json()
    scores, length = found["outputs"]["scores"], found["outputs"]["length"]
    assert scores["max_abs_difference"] == pytest.approx(0.2)
    assert (length["max_abs_difference"], length["top1_agreement"]) == (0.0, None)
    buckets = {
        (one["batch_size"], one["padded"], one["loaded_by"]): one["outputs"]["scores"] for one in found["buckets"]
    }
    assert set(buckets) == {(1, False, "session"), (1, False, "Python"), (2, False, "session"), (2, False, "Python"),
                            (2, True, "session"), (2, True, "Python")}  # fmt: skip
    assert buckets[1, False, "session"]["max_abs_difference"] == 0.0
    assert buckets[2, False, "Python"]["max_abs_difference"] == 0.0
    assert buckets[2, False, "session"]["max_abs_difference"] == pytest.approx(0.2)


def test_the_mean_is_over_every_element_that_was_compared() -> None:
    # 1 row, then 2, 2 and 1 of the five rows, then 1 row of a padded batch of two.
    # Together they are 7 rows of 2 scores, 5 of them off by 0.2.
    only_session = compare({"session": Model(nudge)}, LOOSE)
    assert only_session.outputs["scores"].elements == 14
    assert only_session.outputs["scores"].mean_abs == pytest.approx(5 * 0.2 / 14)


def test_another_best_class_is_counted_even_within_the_tolerance() -> None:
    found = check(nudge, LOOSE)
    assert found.outputs["scores"].top1_agreement == pytest.approx(13 / 14)
    assert found.other_classes() == ["scores: 1 of 14"]
    assert found.failed == []


def test_all_comparisons_are_made_and_told_before_a_failure() -> None:
    with pytest.raises(ParityFailed) as failed:
        check(lambda rows: rows + (1.0 if len(rows) == 2 else 0.0), LOOSE)
    assert str(failed.value) == (
        "serving_default, batch of 2, loaded by session: output 'scores' differs by up to 1. "
        "The tolerance is 0.3 + 0 * |expected| (--atol, --rtol). 3 of 10 comparisons exceed it"
    )
    assert failed.value.details["parity"]["serving_default"]["outputs"]["scores"]["max_abs_difference"] == 1.0


def test_an_infinite_difference_is_none_in_json() -> None:
    with pytest.raises(ParityFailed) as failed:
        check(lambda rows: np.full_like(rows, np.inf), LOOSE)
    scores = failed.value.details["parity"]["serving_default"]["outputs"]["scores"]
    assert (scores["max_abs_difference"], scores["mean_abs_difference"]) == (None, None)


def test_how_far_it_is_is_told_case_by_case() -> None:
    expected: list[tuple[int, int]] = []
    loaded = {"session": Model()}
    compare_cases(
        SIGNATURE, {"x": ROWS}, (1, 2), Model(), loaded, LOOSE,
        padded=True, advance=lambda done, total: expected.append((done, total)),
    )  # fmt: skip
    assert expected == [(done, 5) for done in range(5)]
