"""Tests for the results of Classify and Regress, against protobuf's messages and a JSON parser."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from tensorflow_serving.apis.classification_pb2 import ClassificationResponse, ClassificationResult
from tensorflow_serving.apis.inference_pb2 import MultiInferenceResponse
from tensorflow_serving.apis.regression_pb2 import RegressionResponse, RegressionResult

from tpuserve_server.core.terms.types import Array, ServableId
from tpuserve_server.wire.example_methods import (
    encode_classifications,
    encode_inference_result,
    encode_regressions,
    encode_response,
    json_classifications,
    json_regressions,
)

ID = ServableId("m", 7)
SHAPES = st.tuples(st.integers(1, 5), st.integers(0, 5))
SCORES = st_numpy.arrays(np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False))
LABELS = st_numpy.arrays(np.object_, SHAPES, elements=st.text().map(str.encode))


@st.composite
def labels_and_scores(draw: st.DrawFn) -> tuple[Array, Array]:
    labels = draw(LABELS)
    return labels, draw(st_numpy.arrays(np.float32, labels.shape, elements=st.floats(width=32, allow_nan=False)))


def expected(labels: Array | None, scores: Array | None) -> ClassificationResult:
    result = ClassificationResult()
    rows, columns = (labels if labels is not None else scores).shape  # type: ignore[union-attr]  # one is there
    for row in range(rows):
        classifications = result.classifications.add()
        for column in range(columns):
            one = classifications.classes.add()
            if labels is not None:
                one.label = labels[row, column].decode()
            if scores is not None:
                one.score = scores[row, column]
    return result


@given(labels_and_scores())
def test_classes_with_scores(both: tuple[Array, Array]) -> None:
    assert ClassificationResult.FromString(encode_classifications(*both)) == expected(*both)


@given(SCORES, st.data())
def test_the_same_classes_in_every_row(scores: Array, data: st.DataObject) -> None:
    # Some labels are too long for the encoder's cache between responses.
    label = st.text(max_size=90).map(str.encode)
    row = data.draw(st_numpy.arrays(np.object_, scores.shape[1], elements=label))
    labels = np.tile(row, (len(scores), 1))
    assert ClassificationResult.FromString(encode_classifications(labels, scores)) == expected(labels, scores)


@given(SCORES)
def test_scores_alone(scores: Array) -> None:
    assert ClassificationResult.FromString(encode_classifications(None, scores)) == expected(None, scores)


@given(LABELS)
def test_classes_alone(labels: Array) -> None:
    assert ClassificationResult.FromString(encode_classifications(labels, None)) == expected(labels, None)


@given(st_numpy.arrays(np.float32, st.integers(1, 9), elements=st.floats(width=32, allow_nan=False)))
def test_regressions(values: Array) -> None:
    result = RegressionResult.FromString(encode_regressions(values))
    assert [one.value for one in result.regressions] == values.tolist()


def test_columns_of_other_arrays_are_taken_as_they_are() -> None:
    scores = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert ClassificationResult.FromString(encode_classifications(None, scores)) == expected(None, scores)
    labels = np.array([[b"a", b"b", b"c"]] * 4, object)
    assert ClassificationResult.FromString(encode_classifications(labels, scores)) == expected(labels, scores)
    assert json.loads(json_classifications(None, scores))["results"][1] == [["", 1.0], ["", 5.0], ["", 9.0]]
    assert json.loads(json_regressions(scores[0]))["results"] == [0.0, 4.0, 8.0]


def test_responses_carry_version_and_signature() -> None:
    scores = np.ones((1, 2), np.float32)
    body = encode_response(encode_classifications(None, scores), ID, "s")
    response = ClassificationResponse.FromString(body)
    assert response.result == expected(None, scores)
    assert (response.model_spec.name, response.model_spec.version.value, response.model_spec.signature_name) == (
        "m",
        7,
        "s",
    )
    regressed = RegressionResponse.FromString(encode_response(encode_regressions(scores[0]), ID, "s"))
    assert len(regressed.result.regressions) == 2


def test_inference_results_join_to_a_response() -> None:
    classified = encode_inference_result(
        encode_classifications(None, np.ones((1, 2), np.float32)), ID, "c", is_regression=False
    )
    regressed = encode_inference_result(encode_regressions(np.ones(3, np.float32)), ID, "r", is_regression=True)
    response = MultiInferenceResponse.FromString(classified + regressed)
    assert [result.WhichOneof("result") for result in response.results] == [
        "classification_result",
        "regression_result",
    ]
    assert [result.model_spec.signature_name for result in response.results] == ["c", "r"]
    assert len(response.results[1].regression_result.regressions) == 3


@given(labels_and_scores())
def test_json_of_classes_reads_back(both: tuple[Array, Array]) -> None:
    labels, scores = both
    rows = json.loads(json_classifications(labels, scores))["results"]
    assert [[one[0] for one in row] for row in rows] == [[label.decode() for label in row] for row in labels]
    for row, values in zip(rows, scores, strict=True):
        assert [np.float32(one[1]) for one in row] == values.tolist()
        assert all(isinstance(one[1], float) for one in row)


def test_json_of_labels_or_scores_alone_fills_in_what_is_not_there() -> None:
    assert json_classifications(np.array([[b"a", b"b"]], object), None) == b'{"results":[[["a",0.0],["b",0.0]]]}'
    assert json_classifications(None, np.array([[1, 0.5]], np.float32)) == b'{"results":[[["",1.0],["",0.5]]]}'


def test_json_of_labels_that_are_no_text() -> None:
    labels = np.array([[b'"\n', b"\xff"]], object)
    assert json_classifications(labels, None) == b'{"results":[[["\\"\\n",0.0],[{"b64":"/w=="},0.0]]]}'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_of_not_finite_numbers_is_a_bare_token(value: float) -> None:
    values = np.array([1.5, value, -2.0], np.float32)
    token = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}[str(value)]
    assert json_regressions(values) == b'{"results":[1.5,%b,-2.0]}' % token
    assert json_classifications(None, values.reshape(1, 3)).count(token) == 1
