"""Property tests for the layouts of inference requests with raw contents, and for the templates of their responses."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_formats.dtypes import BY_DTYPE, Array, DType
from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_formats.oip.raw_tensor import decode_raw
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import ModelSpec, PredictResult, ServableId
from tpuserve_server.wire.layouts import Layout, Layouts
from tpuserve_server.wire.oip import infer_layout
from tpuserve_server.wire.oip.infer_json import parse_infer_json
from tpuserve_server.wire.oip.infer_json_response import ResponseForm
from tpuserve_server.wire.oip.infer_layout import BodySubject, learn_infer_body, learn_infer_request
from tpuserve_server.wire.oip.infer_proto import InferTemplate, encode_infer_response, parse_infer_request
from tpuserve_server.wire.oip.inference import InferenceResult, RequestedOutput

SIZES = {"FP32": 4, "INT64": 8, "UINT8": 1, "FP16": 2, "BOOL": 1, "BYTES": 4}


def parsed(body: bytes) -> object:
    """Return what the parser reads in a message, or None for an invalid one and for one with more than tensors."""
    try:
        spec, request = parse_infer_request(body)
        inputs = {
            tensor.name: summary(decode_raw(tensor.datatype, tensor.shape, tensor.data))  # type: ignore[arg-type]
            for tensor in request.inputs
        }
    except (ServingError, TypeError, ValueError):
        return None
    if request.windows is not None or request.parameters.timeout_s is not None:
        return None
    return spec, request.output_names, request.id, inputs


def by_layout(layout: Layout, body: bytes) -> object:
    inputs = {name: summary(array) for name, array in layout.inputs(body).items()}
    return layout.spec, layout.output_filter, layout.read_id(body).decode(), inputs


def summary(array: Array) -> tuple[DType, tuple[int, ...], bytes]:
    return array.dtype, array.shape, array.tobytes()


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a serialized request, mostly with as many raw contents of the right sizes as inputs."""
    request = ModelInferRequest(model_name=draw(st.sampled_from(["m", "ö"])), id=draw(st.sampled_from(["", "7", "é"])))
    request.model_version = draw(st.sampled_from(["", "1", "x"]))
    for name in draw(st.lists(st.sampled_from(["x", "y", "x"]), max_size=3)):
        datatype = draw(st.sampled_from(["FP32"] * 3 + list(SIZES)))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        size = int(np.prod(shape, dtype=int)) * SIZES[datatype] + draw(st.sampled_from([0] * 6 + [1]))
        request.raw_input_contents.append(draw(st.binary(min_size=size, max_size=size)))
    if draw(st.sampled_from([False] * 4 + [True])):
        request.parameters["timeout"].int64_param = 1
    for name in draw(st.lists(st.sampled_from(["y", "z"]), max_size=2)):
        request.outputs.add(name=name)
    body = bytes(request.SerializeToString())
    return body + draw(st.sampled_from([b"", b"", b"", b"\x1a\x018", b"\x3a\x00", b"\xf8\x7f\x01", body]))


@settings(max_examples=500)
@given(body=messages(), data=st.data())
def test_a_message_is_read_as_the_parser_reads_it(body: bytes, data: st.DataObject) -> None:
    layouts = Layouts(learn_infer_request)
    for _ in range(2):
        layouts.find(body, None)
    layout = layouts.find(body, None)
    if layout is not None:
        assert by_layout(layout, body) == parsed(body)
    other = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            other[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    found = layouts.find(bytes(other), None)
    if found is not None:
        assert by_layout(found, bytes(other)) == parsed(bytes(other))


def test_ids_of_one_length_share_a_layout() -> None:
    layouts = Layouts(learn_infer_request)
    for number in range(5):
        request = ModelInferRequest(model_name="m", id=f"id-{number}", raw_input_contents=[b"abcd"])
        request.inputs.add(name="x", datatype="FP32", shape=[1])
        layout = layouts.find(request.SerializeToString(), None)
    assert layout is not None
    assert len(layouts) == 1


# The dtype and the shape of each output.
OUTPUTS = st.dictionaries(
    st.text(max_size=3),
    st.tuples(
        st.sampled_from([each for each in BY_DTYPE if each.name in ("float32", "int64", "bool", "object", "bfloat16")]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    max_size=3,
)


def random_outputs(arrays: dict[str, tuple[DType, list[int]]], random: np.random.Generator) -> dict[str, Array]:
    return {
        name: (random.random(shape) * 99).astype(dtype) if not dtype.hasobject else np.full(shape, b"s", object)
        for name, (dtype, shape) in arrays.items()
    }


@settings(deadline=None)
@given(
    arrays=OUTPUTS,
    request_id=st.sampled_from(["", "7", "a" * 200]),
    seed=st.integers(0, 99),
)
def test_a_template_gives_the_bytes_of_the_encoder(
    arrays: dict[str, tuple[DType, list[int]]], request_id: str, seed: int
) -> None:
    random, servable = np.random.default_rng(seed), ServableId("m", 7)
    first, second = random_outputs(arrays, random), random_outputs(arrays, random)
    template = InferTemplate.of(PredictResult(servable, "s", first))
    is_fixed = all(array.size and not array.dtype.hasobject for array in first.values())
    assert (template is not None) == is_fixed
    if template is None:
        return
    for each in (first, second):
        expected = encode_infer_response(InferenceResult(request_id, servable, each, {}, True))
        assert template.encode(each, request_id.encode()) == expected
    for name, array in first.items():
        assert template.encode({**first, name: np.append(array, array)}, b"") is None
    assert template.encode({**first, "another": np.zeros(1)}, b"") is None


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES"])
def test_contents_that_must_be_checked_have_no_layout(datatype: str) -> None:
    layouts = Layouts(learn_infer_request)
    request = ModelInferRequest(model_name="m", raw_input_contents=[b"\0" * SIZES[datatype]])
    request.inputs.add(name="x", datatype=datatype, shape=[1])
    for _ in range(3):
        assert layouts.find(request.SerializeToString(), None) is None


def many_inputs(request: ModelInferRequest) -> None:
    for number in range(10_000):
        request.inputs.add(name=f"{number:x}", datatype="FP32", shape=[1])
        request.raw_input_contents.append(b"abcd")


def many_parameters(request: ModelInferRequest) -> None:
    for number in range(10_000):
        request.parameters[f"{number:x}"].int64_param = number


@pytest.mark.parametrize(
    "change",
    [
        many_inputs,
        many_parameters,
        pytest.param(lambda request: request.inputs[0].shape.extend([1] * 10_000), id="many dimensions"),
        pytest.param(
            lambda request: request.inputs[0].contents.fp32_contents.extend([0.0] * 10_000), id="typed values"
        ),
    ],
)
def test_no_parser_reads_a_message_with_much_outside_of_its_contents(
    change: Callable[[ModelInferRequest], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning is on the event loop, and nobody has bounded what the parser would make of the message."""

    def parse(_body: bytes) -> None:
        pytest.fail("the message was parsed")

    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    change(request)
    monkeypatch.setattr(infer_layout, "parse_infer_request", parse)
    assert learn_infer_request(bytes(request.SerializeToString())) is None


def parsed_body(body: bytes, subject: BodySubject) -> object:
    """Return what the parser reads in a body, or None for an invalid one and for one with more than tensors."""
    try:
        request = parse_infer_json(subject.spec.name, body, subject.json_bytes)
        inputs = {
            tensor.name: summary(decode_raw(tensor.datatype, tensor.shape, tensor.data))  # type: ignore[arg-type]
            for tensor in request.inputs
        }
    except (ServingError, TypeError, ValueError):
        return None
    parameters = request.parameters
    if request.windows is not None or parameters.timeout_s is not None or parameters.priority is not None:
        return None
    spec = subject.spec.with_signature(parameters.signature_name)
    return spec, request.output_names, ResponseForm.of(request), inputs


def body_by_layout(layout: Layout, body: bytes) -> object:
    inputs = {name: summary(array) for name, array in layout.inputs(body).items()}
    return layout.spec, layout.output_filter, layout.form, inputs


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, BodySubject]:
    """Draw a request over REST, mostly with binary data of the right sizes."""
    document: dict[str, Any] = {"inputs": []}
    data = b""
    for name in draw(st.lists(st.sampled_from(["x", "y", "x"]), max_size=3)):
        datatype = draw(st.sampled_from(["FP32"] * 3 + list(SIZES)))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        size = int(np.prod(shape, dtype=int)) * SIZES[datatype] + draw(st.sampled_from([0] * 6 + [1]))
        parameters = {"binary_data_size": size}
        document["inputs"].append({"name": name, "datatype": datatype, "shape": shape, "parameters": parameters})
        data += draw(st.binary(min_size=size, max_size=size))
    if request_id := draw(st.sampled_from(["", "7", "é"])):
        document["id"] = request_id
    if outputs := draw(st.lists(st.sampled_from(["y", "z"]), max_size=2)):
        classes = draw(st.sampled_from([0, 0, 0, 2]))
        document["outputs"] = [{"name": name, "parameters": {"classification": classes}} for name in outputs]
    usual = [{"binary_data_output": True}] * 3 + [{}, {"signature_name": "s"}, {"timeout": 1}, {"priority": 1}]
    document["parameters"] = draw(st.sampled_from(usual))
    text = json.dumps(document).encode()
    return text + data, BodySubject(ModelSpec("m"), len(text))


@settings(max_examples=500)
@given(drawn=bodies(), data=st.data())
def test_a_body_is_read_as_the_parser_reads_it(drawn: tuple[bytes, BodySubject], data: st.DataObject) -> None:
    body, subject = drawn
    layouts = Layouts(learn_infer_body)
    for _ in range(2):
        layouts.find(body, subject)
    layout = layouts.find(body, subject)
    if layout is not None:
        assert body_by_layout(layout, body) == parsed_body(body, subject)
    other = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        other[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    found = layouts.find(bytes(other), subject)
    if found is not None:
        assert body_by_layout(found, bytes(other)) == parsed_body(bytes(other), subject)


def test_each_model_and_each_length_of_json_has_its_own_layout() -> None:
    text = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[4],"parameters":{"binary_data_size":4}}]}'
    layouts, subject = Layouts(learn_infer_body), BodySubject(ModelSpec("m"), len(text))
    for _ in range(3):
        layout = layouts.find(text + b"1234", subject)
    assert layout is not None
    assert layouts.find(text + b"1234", BodySubject(ModelSpec("n"), len(text))) is None
    assert layouts.find(text + b"1234", BodySubject(ModelSpec("m", 1), len(text))) is None
    assert layouts.find(text + b"1234", BodySubject(ModelSpec("m"), len(text) + 1)) is None


@settings(deadline=None)
@given(
    arrays=OUTPUTS,
    is_binary=st.booleans(),
    request_id=st.sampled_from(["", "é"]),
    data=st.data(),
)
def test_a_json_template_gives_the_bytes_of_the_encoder(
    arrays: dict[str, tuple[DType, list[int]]], is_binary: bool, request_id: str, data: st.DataObject
) -> None:
    random, servable = np.random.default_rng(1), ServableId("m", 7)
    first, second = random_outputs(arrays, random), random_outputs(arrays, random)
    named = data.draw(st.sets(st.sampled_from(list(arrays)))) if arrays else set()
    requested = {name: RequestedOutput(name, 0, not is_binary) for name in named}
    form = ResponseForm(request_id, requested, is_binary)
    template = form.template(PredictResult(servable, "s", first))
    kinds = {is_binary != (name in named) for name in first}
    is_fixed = not any(array.dtype.hasobject for array in first.values())
    if kinds == {True}:
        assert (template is not None) == (is_fixed and all(array.size for array in first.values()))
    elif kinds == {False}:
        assert (template is not None) == (is_fixed and all(array.dtype.name != "bfloat16" for array in first.values()))
    else:
        assert template is None
    if template is None:
        return
    for each in (first, second):
        assert template.encode(each) == form.encode(PredictResult(servable, "s", each))
    for name, array in first.items():
        assert template.encode({**first, name: np.zeros((*array.shape, 2), array.dtype)}) is None
        if kinds == {False} and array.size and array.dtype.kind == "f":
            assert template.encode({**first, name: np.full_like(array, np.inf)}) is None
    assert template.encode({**first, "another": np.zeros(1)}) is None


def test_a_body_with_much_json_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_layout, "parse_infer_json", lambda *_: pytest.fail("the body was parsed"))
    text = b'{"inputs":[' + b"{}," * 2000 + b"{}]}"
    assert learn_infer_body(text + b"1234", BodySubject(ModelSpec("m"), len(text))) is None
