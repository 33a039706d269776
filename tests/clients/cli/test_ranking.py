"""Tests for the choice of the best classes by names that match the scores."""

import numpy as np

from tpuserve_client.cli.ranking import rank


def _labels(outputs: dict[str, np.ndarray], labels: tuple[str, ...] = ()) -> list[list[str | None]]:
    return [[one.label for one in row] for row in rank(outputs, labels)["scores"]]


def test_names_in_the_answer_go_before_labels() -> None:
    scores = np.array([[0.2, 0.8], [0.9, 0.1]], np.float32)
    classes = np.array([[b"no", b"yes"], [b"low", b"high"]], object)
    assert _labels({"scores": scores, "classes": classes}, ("x", "y")) == [["yes", "no"], ["low", "high"]]


def test_names_of_another_number_of_rows_are_not_used() -> None:
    scores = np.array([[0.2, 0.8], [0.9, 0.1]], np.float32)
    classes = np.array([[b"no", b"yes"]], object)
    assert _labels({"scores": scores, "classes": classes}, ("x", "y")) == [["y", "x"], ["x", "y"]]
    assert _labels({"scores": scores, "classes": classes}) == [[None, None], [None, None]]
