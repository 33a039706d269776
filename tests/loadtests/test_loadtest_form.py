"""Tests for the form of responses: every wrong one is found over every protocol, also after right ones of its size."""

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.clients.oip_bodies import described, write_response
from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.messages import official, oip
from tpuserve_formats.oip.raw_tensor import encode_raw
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_loadtests.golden.answers import AnswerChecks, CheckPlan
from tpuserve_loadtests.golden.form import LARGE_BYTES, PARSED_EVERY, WrongAnswer
from tpuserve_loadtests.measurement.recorder import Delivery
from tpuserve_loadtests.requests.protocols import TITLES, Protocol
from tpuserve_loadtests.requests.wires import encode_golden
from tpuserve_loadtests.requests.workload import Line

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
OUTPUTS = {
    "scores": TensorSpec("scores", FLOAT, (None, 3)),
    "class": TensorSpec("class", INT, (None,)),
    "total": TensorSpec("total", FLOAT, ()),
}
# The end of a PredictResponse: `model_spec` with version 1.
MODEL_SPEC = b"\x12\x04\x12\x02\x08\x01"
JSON_PROTOCOLS = ("rest", "oip_json")


def line_of(
    protocol: Protocol, outputs: Mapping[str, TensorSpec] = OUTPUTS, golden: tuple[bytes, ...] = (), rows: int = 2
) -> Line:
    signature = Signature("s", {"x": TensorSpec("x", FLOAT, (None, 4))}, outputs)
    return Line(protocol, protocol, ModelSpec("m"), signature, (Exchange("/", b""),), (rows,), golden)


def right(seed: int = 0, rows: int = 2) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "scores": random.random((rows, 3)).astype(FLOAT),
        "class": random.integers(0, 9, rows),
        "total": np.array(random.random(), FLOAT),
    }


def reply_of(protocol: Protocol, outputs: Mapping[str, Array], *, version: int = 1, typed: bool = False) -> Reply:
    """Return a response; with `typed`, TensorFlow Serving's gRPC form without `tensor_content`."""
    match protocol:
        case "grpc":
            response = official.PredictResponse()
            response.model_spec.version.value = version
            for name, array in outputs.items():
                response.outputs[name].ParseFromString(encode_tensor(array, as_content=not typed))
            return Reply(response.SerializeToString(deterministic=True))
        case "rest":
            arrays = {name: _listed(array) for name, array in outputs.items()}
            (only, *others) = arrays.values()
            return Reply(json.dumps({"outputs": arrays if others else only}).encode())
        case "oip_grpc":
            raw = [bytes(encode_raw(array)) for array in outputs.values()]
            infer = oip.ModelInferResponse(model_version=str(version), raw_output_contents=raw)
            for name, array in outputs.items():
                infer.outputs.add(**described(name, array))
            return Reply(infer.SerializeToString())
        case "oip_http":
            return Reply(*write_response(outputs))
    items = [{**described(name, array), "data": _listed(array.ravel())} for name, array in outputs.items()]
    return Reply(json.dumps({"model_version": str(version), "outputs": items}).encode())


def _listed(array: Array) -> object:
    return [value.decode() for value in array] if array.dtype == STRING else array.tolist()


def checks_of(line: Line) -> AnswerChecks:
    return AnswerChecks([line], CheckPlan(), seed=0)


def refusal(checks: AnswerChecks, line: Line, reply: Reply) -> str:
    """Return the message of a wrong response, or an empty text for a right one."""
    try:
        checks.check(line, 0, reply, 0.0, Delivery())
    except WrongAnswer as error:
        return str(error)
    return ""


def primed(line: Line, *, typed: bool = False) -> AnswerChecks:
    """Return checks after right responses."""
    checks = checks_of(line)
    for seed in range(20):
        reply = reply_of(line.protocol, right(seed), typed=typed)
        assert refusal(checks, line, reply) == ""
    return checks


WRONG: dict[str, Mapping[str, Array]] = {
    "name": {**{name: array for name, array in right().items() if name != "class"}, "klass": right()["class"]},
    "missing": {"scores": right()["scores"], "total": right()["total"]},
    "extra": {**right(), "more": right()["total"]},
    "rows": right(rows=3),
    "rank": {**right(), "total": right()["scores"]},
    "dimension": {**right(), "scores": np.zeros((2, 4), FLOAT)},
    "transposed": {**right(), "scores": np.zeros((3, 2), FLOAT)},
    "floats": {**right(), "class": np.array([0.5, 1.5])},
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("protocol", TITLES)
def test_other_names_dtypes_and_dimensions_are_wrong(protocol: Protocol, kind: str) -> None:
    line = line_of(protocol)
    words = refusal(primed(line), line, reply_of(protocol, WRONG[kind]))
    wanted = "wrong response: expected scores: float32[2, 3], class: int64[2], total: float32[], received "
    assert words.startswith((wanted, "wrong response: output 'class' has JSON values of type float, expected int64"))


@pytest.mark.parametrize("protocol", [protocol for protocol in TITLES if protocol not in JSON_PROTOCOLS])
def test_right_bytes_of_another_dtype_are_wrong(protocol: Protocol) -> None:
    line = line_of(protocol)
    others = {**right(), "scores": right()["scores"].view(np.int32)}
    assert "received scores: int32[2, 3]" in refusal(primed(line), line, reply_of(protocol, others)).replace(
        "class: int64[2], scores", "scores"
    )


@pytest.mark.parametrize("protocol", TITLES)
@pytest.mark.parametrize(
    ("body", "received"),
    [
        (b"\n<!doctype html><p>Please log in.", "an HTML page"),
        (b'{"error": "no such model"}', '{"error": "no such model"}'),
        (b"", "an empty body"),
        (b"[1, 2]", "[1, 2]"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_other_bodies_are_wrong(protocol: Protocol, body: bytes, received: str) -> None:
    line = line_of(protocol)
    words = refusal(primed(line), line, Reply(body))
    if body or protocol not in ("grpc", "oip_grpc"):
        assert f"total: float32[], received {received}" in words
    else:
        assert words.endswith("received no outputs")  # an empty message


@pytest.mark.parametrize("protocol", TITLES)
def test_cut_bodies_are_wrong(protocol: Protocol) -> None:
    line = line_of(protocol)
    checks, reply = primed(line), reply_of(protocol, right())
    end = len(reply.body) - (len(MODEL_SPEC) if protocol == "grpc" else 0)
    for length in range(end):
        assert refusal(checks, line, Reply(reply.body[:length], reply.headers)), length


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("protocol", TITLES)
def test_a_response_is_judged_alike_before_and_after_right_ones(protocol: Protocol, typed: bool) -> None:
    line = line_of(protocol)
    reply = reply_of(protocol, right(), typed=typed)
    random = np.random.default_rng(3)
    checks = primed(line, typed=typed)
    found = set()
    for _ in range(1500):
        body = bytearray(reply.body)
        for _ in range(random.integers(1, 4)):
            body[random.integers(len(body))] = random.integers(256)
        changed = Reply(bytes(body), reply.headers)
        is_wrong = bool(refusal(checks, line, changed))
        assert is_wrong == bool(refusal(checks_of(line), line, changed)), changed.body
        found.add(is_wrong)
    assert found == {True, False}


@pytest.mark.parametrize("protocol", TITLES)
def test_not_finite_values_are_wrong_if_golden_answers_are_finite(protocol: Protocol) -> None:
    off = {**right(), "scores": np.full((2, 3), np.nan, FLOAT)}
    line = line_of(protocol)
    assert refusal(primed(line), line, reply_of(protocol, off)) == ""
    line = line_of(protocol, golden=(encode_golden(right()),))
    checks = checks_of(line)
    for _ in range(2):
        assert refusal(checks, line, reply_of(protocol, right())) == ""
    assert "output 'scores' has NaN or infinite values" in refusal(checks, line, reply_of(protocol, off))
    line = line_of(protocol, golden=(encode_golden(off),))
    assert refusal(checks_of(line), line, reply_of(protocol, off)) == ""


@pytest.mark.parametrize("protocol", TITLES)
def test_strings_and_free_dimensions_are_checked(protocol: Protocol) -> None:
    outputs = {
        "label": TensorSpec("label", STRING, (None,)),
        "boxes": TensorSpec("boxes", FLOAT, (None, None)),
        "any": TensorSpec("any", FLOAT, None),
    }
    line = line_of(protocol, outputs)
    checks = checks_of(line)
    for length in range(1, 6):
        found = {
            "label": np.array([b"cat", b"dog" * length], object),
            "boxes": np.ones((2, length), FLOAT),
            "any": np.ones((length, 1), FLOAT),
        }
        assert refusal(checks, line, reply_of(protocol, found)) == ""
        assert refusal(checks, line, reply_of(protocol, {**found, "boxes": np.ones((3, length), FLOAT)})) != ""
        assert refusal(checks, line, reply_of(protocol, {**found, "label": np.ones(2, FLOAT)})) != ""


@pytest.mark.parametrize("protocol", TITLES)
def test_a_free_dimension_without_rows_is_known_from_golden_answers(protocol: Protocol) -> None:
    outputs = {"boxes": TensorSpec("boxes", FLOAT, (None, 2))}
    boxes = {"boxes": np.ones((7, 2), FLOAT)}
    line = line_of(protocol, outputs)
    assert "expected boxes: float32[2, 2], received boxes: float32[7, 2]" in refusal(
        checks_of(line), line, reply_of(protocol, boxes)
    )
    line = line_of(protocol, outputs, (encode_golden(boxes),))
    assert refusal(checks_of(line), line, reply_of(protocol, boxes)) == ""
    assert refusal(checks_of(line), line, reply_of(protocol, {"boxes": np.ones((7, 3), FLOAT)}))


@pytest.mark.parametrize("protocol", ["grpc", "oip_grpc", "oip_json"])
def test_another_version_of_the_same_form_is_right(protocol: Protocol) -> None:
    line = line_of(protocol)
    assert refusal(primed(line), line, reply_of(protocol, right(), version=1234)) == ""


@pytest.mark.parametrize("protocol", ["grpc", "oip_grpc"])
def test_another_version_than_the_requested_one_is_wrong(protocol: Protocol) -> None:
    line = replace(line_of(protocol), spec=ModelSpec("m", version=1))
    assert refusal(primed(line), line, reply_of(protocol, right(), version=1)) == ""
    assert (
        refusal(primed(line), line, reply_of(protocol, right(), version=1234))
        == "wrong response: version 1234 answered instead of version 1"
    )


def test_messages_of_wrong_responses_are_few() -> None:
    line = line_of("rest")
    checks = checks_of(line)
    words = {refusal(checks, line, Reply(f"{number:010} bytes".encode())) for number in range(500)}
    assert len(words) <= 33


@pytest.mark.parametrize("protocol", JSON_PROTOCOLS)
def test_large_responses_in_json_are_compared_in_outline_and_some_are_parsed(protocol: Protocol) -> None:
    line = line_of(protocol, {"scores": TensorSpec("scores", FLOAT, (None, 1000))}, rows=1)
    checks = checks_of(line)
    good = reply_of(protocol, {"scores": np.random.default_rng(0).random((1, 1000)).astype(FLOAT)})
    assert len(good.body) > LARGE_BYTES
    for _ in range(20):
        assert refusal(checks, line, good) == ""
    for other in (good.body[:-300], good.body.replace(b", 0.", b", null, 0.", 1), b"<html>" + good.body):
        assert refusal(checks, line, Reply(other))
    read = [Delivery() for _ in range(2 * PARSED_EVERY)]
    for seed, delivery in enumerate(read, 1):
        scores = np.random.default_rng(seed).random((1, 1000)).astype(FLOAT)
        checks.check(line, 0, reply_of(protocol, {"scores": scores}), 0.0, delivery)
    assert [delivery.unparsed for delivery in read].count(False) == 2
    # Only a parser sees a number with two points.
    invalid = Reply(good.body.replace(b", 0.", b", 0..", 1))
    assert [bool(refusal(checks, line, invalid)) for _ in range(2 * PARSED_EVERY)].count(True) == 2
