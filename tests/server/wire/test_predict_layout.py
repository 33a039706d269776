"""Property tests for requests without their contents and for layouts: they are read as whole messages, or decline."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2

from tests.server.wire.predict_messages import NUMBERS, Summary, messages, summary
from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Body, ModelSpec
from tpuserve_server.wire import predict_layout
from tpuserve_server.wire.layouts import MOST_BYTES, MOST_LAYOUTS, Frame, Layout, Layouts, Span
from tpuserve_server.wire.predict_layout import is_slow, learn_predict_request, split_request
from tpuserve_server.wire.predict_proto import decode_predict_inputs, decode_predict_spec, parse_predict_request

Read = tuple[ModelSpec, tuple[str, ...], Summary]
FLOAT = np.dtype(np.float32)


def parsed(body: bytes) -> Read | None:
    """Return what the parser reads in a message, or None for an invalid one."""
    try:
        proto = parse_predict_request(body)
        spec, inputs = decode_predict_spec(proto), decode_predict_inputs(proto, 1 << 20)
    except ServingError:
        return None
    return spec, tuple(proto.output_filter), summary(inputs)


def by_layout(layout: Layout, body: bytes) -> Read:
    return layout.spec, layout.output_filter, summary(layout.inputs(body))


def learned(body: bytes) -> Layouts[None]:
    """Return layouts that have seen a message as often as learning takes."""
    layouts = Layouts(learn_predict_request)
    for _ in range(2):
        layouts.find(body, None)
    return layouts


def plain(*, rows: int = 1, name: str = "m", seed: int = 0) -> bytes:
    """Return the request of a usual client."""
    request = predict_pb2.PredictRequest(model_spec={"name": name})
    x = np.random.default_rng(seed).random((rows, 4), np.float32)
    request.inputs["x"].MergeFromString(encode_tensor(x, as_content=True))
    return bytes(request.SerializeToString())


@settings(max_examples=600)
@given(body=messages(), data=st.data())
@example(body=plain(), data=None)
def test_a_message_is_read_as_the_parser_reads_it(body: bytes, data: st.DataObject | None) -> None:
    layouts = learned(body)
    layout = layouts.find(body, None)
    if layout is None:
        return
    assert by_layout(layout, body) == parsed(body)
    if data is None:
        return
    # Any message of this length: only the parser knows whether it is valid.
    other = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        other[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    found = layouts.find(bytes(other), None)
    if found is not None:
        assert by_layout(found, bytes(other)) == parsed(bytes(other))


@settings(max_examples=300)
@given(
    arrays=st.dictionaries(
        st.text(max_size=3),
        st.tuples(st.sampled_from(NUMBERS), st.lists(st.integers(1, 3), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    seeds=st.lists(st.integers(0, 999), min_size=3, max_size=3),
)
def test_usual_requests_have_a_layout_whatever_their_numbers(
    arrays: dict[str, tuple[int, list[int]]], seeds: list[int]
) -> None:
    def body(seed: int) -> bytes:
        request = predict_pb2.PredictRequest(model_spec={"name": "m"})
        random = np.random.default_rng(seed)
        for name, (number, shape) in arrays.items():
            wire = BY_NUMBER[number]
            array = np.frombuffer(random.bytes(int(np.prod(shape, dtype=int)) * wire.dtype.itemsize), np.uint8)
            values = (array % 2).view(np.bool_) if wire.field == "bool_val" else array.view(wire.dtype)
            request.inputs[name].MergeFromString(encode_tensor(values.reshape(shape), as_content=True))
        return bytes(request.SerializeToString(deterministic=True))

    first, second, third = map(body, seeds)
    layouts = Layouts(learn_predict_request)
    assert layouts.find(first, None) is None
    assert layouts.find(second, None) is None
    layout = layouts.find(third, None)
    has_bools = any(BY_NUMBER[number].field == "bool_val" for number, _ in arrays.values())
    assert (layout is None) == has_bools
    if layout is not None:
        assert by_layout(layout, third) == parsed(third)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_inputs_are_views_that_nobody_can_write_to(kind: Callable[[bytes], bytes]) -> None:
    """The host puts a message with a large tensor into a bytearray."""
    body = kind(plain(rows=2))
    layout = learned(body).find(body, None)
    assert layout is not None
    (array,) = layout.inputs(body).values()
    assert not array.flags.writeable
    assert np.may_share_memory(array, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda request: request.inputs["x"].ClearField("tensor_content"), id="no content"),
        pytest.param(lambda request: request.inputs["s"].string_val.append(b"s"), id="a tensor of strings"),
        pytest.param(lambda request: request.ClearField("inputs"), id="no tensors"),
        pytest.param(lambda request: request.ClearField("model_spec"), id="no model"),
    ],
)
def test_other_messages_have_none(change: Callable[[predict_pb2.PredictRequest], object]) -> None:
    request = predict_pb2.PredictRequest.FromString(plain())
    change(request)
    layouts = learned(bytes(request.SerializeToString()))
    assert len(layouts) == 0


def test_a_large_message_has_none() -> None:
    layouts = learned(plain(rows=MOST_BYTES // 16))
    assert len(layouts) == 0


def many_inputs(request: predict_pb2.PredictRequest) -> None:
    for number in range(10_000):
        request.inputs[f"{number:x}"].tensor_content = b"abcd"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(many_inputs, id="many tensors"),
        pytest.param(lambda request: request.output_filter.extend("y" * 10_000), id="many outputs"),
        pytest.param(lambda request: request.output_filter.append("y" * 10_000), id="a long name"),
        pytest.param(lambda request: request.inputs["x"].float_val.extend([0.0] * 10_000), id="typed values"),
        pytest.param(lambda request: request.inputs["x"].string_val.extend([b"s"] * 10_000), id="many strings"),
    ],
)
def test_no_parser_reads_a_message_with_much_outside_of_its_contents(
    change: Callable[[predict_pb2.PredictRequest], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning is on the event loop, and nobody has bounded what the parser would make of the message."""

    def parse(_body: bytes) -> None:
        pytest.fail("the message was parsed")

    request = predict_pb2.PredictRequest.FromString(plain())
    change(request)
    monkeypatch.setattr(predict_layout, "parse_predict_request", parse)
    assert learn_predict_request(bytes(request.SerializeToString())) is None


def test_messages_of_one_length_may_have_different_layouts() -> None:
    layouts = Layouts(learn_predict_request)
    for _ in range(2):
        for name in "abc":
            layouts.find(plain(name=name), None)
    for name in "abc":
        layout = layouts.find(plain(name=name, seed=9), None)
        assert layout is not None
        assert layout.spec == ModelSpec(name)


def framed(number: int, length: int) -> bytes:
    return b"%08d" % number + bytes(length)


def counting(learnt: list[Body]) -> Layouts[None]:
    """Return layouts of messages whose first eight bytes are their frame."""

    def learn(body: Body, _subject: None) -> Frame:
        learnt.append(body)
        return Frame(ModelSpec("m"), (), (Span("x", np.dtype(np.uint8), (len(body) - 8,), 8, len(body)),))

    return Layouts(learn)


def test_new_lengths_cost_no_learning_and_forget_no_layout_in_use() -> None:
    learnt: list[Body] = []
    layouts = counting(learnt)
    for _ in range(3):
        layouts.find(framed(1, 5), None)
    for length in range(10, 5000):
        layouts.find(framed(2, length), None)
        assert layouts.find(framed(1, 5), None) is not None
    assert len(learnt) == 1


def test_a_flood_of_layouts_costs_little_and_forgets_no_layout_in_use() -> None:
    learnt: list[Body] = []
    layouts = counting(learnt)
    for _ in range(3):
        layouts.find(framed(1, 5), None)
    misses = 0
    for length in range(10, 4000):
        for _ in range(2):
            misses += layouts.find(framed(2, length), None) is None
        assert layouts.find(framed(1, 5), None) is not None
    assert len(layouts) <= MOST_LAYOUTS
    assert len(learnt) <= MOST_LAYOUTS + misses // 16 + 1


def test_a_layout_that_had_to_leave_comes_back() -> None:
    learnt: list[Body] = []
    layouts = counting(learnt)
    for _ in range(2):
        layouts.find(framed(1, 5), None)
    for length in range(10, 4000):
        for _ in range(2):
            layouts.find(framed(2, length), None)
    assert layouts.find(framed(1, 5), None) is None
    for _ in range(20):
        found = layouts.find(framed(1, 5), None)
    assert found is not None


def test_frames_of_one_length_are_few_and_the_used_ones_stay() -> None:
    layouts = counting([])
    for _ in range(3):
        layouts.find(framed(1, 5), None)
    for number in range(2, 500):
        layouts.find(framed(number, 5), None)
        assert layouts.find(framed(1, 5), None) is not None
    assert len(layouts) <= 8


LIMIT_BYTES = 1 << 20


def read(body: bytes, *, splits: bool) -> tuple[ModelSpec, list[str], Summary] | str:
    """Return the contents of a request, or its error."""
    message, contents = split_request(body) if splits else (body, {})
    try:
        proto = parse_predict_request(message)
        inputs = decode_predict_inputs(proto, LIMIT_BYTES, contents=contents)
        return decode_predict_spec(proto), list(proto.output_filter), summary(inputs)
    except ServingError as error:
        return error.message


@pytest.fixture
def _split_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_layout, "_LARGE_BYTES", 1)


@pytest.mark.usefixtures("_split_small")
@settings(max_examples=250)
@given(body=messages())
def test_a_split_request_says_what_the_whole_one_does(body: bytes) -> None:
    assert read(body, splits=True) == read(body, splits=False)


def image(array: np.ndarray) -> bytes:
    request = predict_pb2.PredictRequest(model_spec={"name": "m"})
    request.inputs["small"].MergeFromString(encode_tensor(np.ones(4, np.float32), as_content=True))
    request.inputs["x"].MergeFromString(encode_tensor(array, as_content=True))
    return bytes(request.SerializeToString())


def test_large_contents_are_views_of_the_message() -> None:
    body = image(np.random.default_rng(0).random((2, 224, 224, 3), np.float32))
    message, contents = split_request(body)
    assert contents.keys() == {"x"}
    assert len(message) < 200
    inputs = decode_predict_inputs(parse_predict_request(message), 0, contents=contents)
    assert np.shares_memory(inputs["x"], np.frombuffer(body, np.uint8))
    assert not is_slow(parse_predict_request(message), contents)


def test_bools_are_left_to_a_thread() -> None:
    message, contents = split_request(image(np.ones(1 << 17, np.bool_)))
    assert is_slow(parse_predict_request(message), contents)
