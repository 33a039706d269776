"""Tests for the proof that an answer belongs to its request and to one version."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.soak.question import BASE, COUNTED, ENSEMBLE, SEQUENCES, Question, Tensors, WrongAnswerError

QUESTION = Question(5, COUNTED, rows=2)


def answer(question: Question, version: int, factor: int = 1) -> Tensors:
    """Return what a right server answers."""
    return {
        "y": question.inputs["x"] * factor * (BASE + version),
        "same": np.array([f"v{version}:{text}".encode() for text in question.text], object),
    }


def test_a_right_answer_proves_its_version() -> None:
    assert QUESTION.prove(answer(QUESTION, 7)) == 7
    ensemble = Question(5, ENSEMBLE, rows=2)
    assert ensemble.prove(answer(ensemble, 7, factor=3)) == 7


@pytest.mark.parametrize(
    "spoil",
    [
        lambda outputs: outputs["y"].__setitem__(1, outputs["y"][0]),  # a row of the same request, twice
        lambda outputs: outputs.update(answer(Question(6, COUNTED, rows=2), 7)),  # the answer of the next request
        lambda outputs: outputs.update(same=answer(QUESTION, 8)["same"]),  # outputs of two versions
        lambda outputs: outputs["y"].__setitem__(1, answer(QUESTION, 8)["y"][1]),  # rows of two versions
        lambda outputs: outputs.update(y=outputs["y"][:1]),  # a row is missing
        lambda outputs: outputs.pop("same"),  # an output is missing
        lambda outputs: outputs.update(y=outputs["y"] + 1),
    ],
)
def test_a_wrong_answer_is_found(spoil: Callable[[Tensors], object]) -> None:
    outputs = answer(QUESTION, 7)
    spoil(outputs)
    with pytest.raises(WrongAnswerError, match="counted: sent"):
        QUESTION.prove(outputs)


def test_classes_and_values_prove_their_version() -> None:
    classes = [[(f"v7:{x}", 7.0)] for x in QUESTION.x]
    values = [float(x % 1024 + 1024 * 7) for x in QUESTION.x]
    assert (QUESTION.prove_classes(classes), QUESTION.prove_values(values)) == (7, 7)
    for wrong in (classes[:1], classes[::-1], [*classes[:1], [("v8:1", 8.0)]], []):
        with pytest.raises(WrongAnswerError):
            QUESTION.prove_classes(wrong)
    for wrong_values in (values[:1], values[::-1], []):
        with pytest.raises(WrongAnswerError):
            QUESTION.prove_values(wrong_values)


def test_padding_that_stays_in_a_sequence_is_found() -> None:
    question = Question(2, SEQUENCES, rows=1)
    ids = question.inputs["ids"]
    assert question.prove({"doubled": 2 * ids, "total": ids.sum(axis=1)}) is None
    with pytest.raises(WrongAnswerError):
        question.prove({"doubled": np.pad(2 * ids, ((0, 0), (0, 1))), "total": ids.sum(axis=1)})
