"""Tests for the scan of protobuf messages: real ones pass, floods are refused before they take memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_serving.apis import classification_pb2, predict_pb2

from tpuserve_formats.varint import varint
from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.system.byte_parts import LARGE_CONTENTS_BYTES
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.proto_scan import (
    EXAMPLE_REQUEST,
    INFER_REQUEST,
    MAX_DIMS,
    MAX_NAME_BYTES,
    PREDICT_REQUEST,
    Form,
    check_structure,
    find_large,
    is_quick,
)

MEBIBYTE = 1 << 20
BUDGET = DecodedBudget(64 * MEBIBYTE)


def within(*numbers: int, content: bytes) -> bytes:
    """Return `content` inside messages, in the fields of these numbers from the outermost."""
    for number in reversed(numbers):
        content = varint(number << 3 | 2) + varint(len(content)) + content
    return content


def test_requests_pass() -> None:
    request = predict_pb2.PredictRequest(model_spec={"name": "m"}, output_filter=["a", "b"])
    for name in "xyz":
        tensor = request.inputs[name]
        tensor.dtype = 7
        for size in range(MAX_DIMS):
            tensor.tensor_shape.dim.add(size=size)
        tensor.string_val.extend([b"x" * size for size in range(300)])
        tensor.int64_val.extend(range(1000))
        tensor.double_val.extend(np.arange(1000.0).tolist())
    check_structure(request.SerializeToString(), PREDICT_REQUEST, BUDGET)
    examples = classification_pb2.ClassificationRequest()
    for number in range(100):
        examples.input.example_list.examples.add().features.feature[f"f{number}"].float_list.value.append(number)
    check_structure(examples.SerializeToString(), EXAMPLE_REQUEST, BUDGET)


@pytest.mark.parametrize(
    ("form", "body", "reason"),
    [
        (PREDICT_REQUEST, within(2, 2, 2, content=b"\x12\x00" * 2 * MEBIBYTE), "more than 254 dimensions"),
        (PREDICT_REQUEST, within(2, 2, 2, content=b"\x12\x02\x08\x01" * MEBIBYTE), "more than 254 dimensions"),
        (PREDICT_REQUEST, within(2, 2, content=b"\x42\x00" * 2 * MEBIBYTE), "messages or strings"),
        (PREDICT_REQUEST, within(2, 2, content=b"\x42\x01a" * MEBIBYTE), "messages or strings"),
        (PREDICT_REQUEST, b"\x12\x00" * 2 * MEBIBYTE, "messages or strings"),
        (PREDICT_REQUEST, b"\x7a\x00" * 2 * MEBIBYTE, "messages or strings"),
        (PREDICT_REQUEST, b"\x78\x01" * 5 * MEBIBYTE, "numbers so far"),
        (PREDICT_REQUEST, b"\x78\x81\x01" * 5 * MEBIBYTE, "numbers so far"),
        (PREDICT_REQUEST, b"\x7d\x01\x02\x03\x04" * 5 * MEBIBYTE, "numbers so far"),
        (EXAMPLE_REQUEST, within(2, 1, content=b"\x0a\x00" * 2 * MEBIBYTE), "messages or strings"),
        (PREDICT_REQUEST, within(2, 2, 10, content=b"\x01" * 5 * MEBIBYTE), "numbers so far"),
        (INFER_REQUEST, within(5, 3, content=b"\x01" * MEBIBYTE), "more than 254 dimensions"),
        (INFER_REQUEST, within(5, 5, 3, content=b"\x01" * 5 * MEBIBYTE), "numbers so far"),
        (INFER_REQUEST, within(5, 5, content=b"\x42\x00" * 2 * MEBIBYTE), "messages or strings"),
    ],
)
def test_floods_are_refused_before_they_take_memory(form: Form, body: bytes, reason: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match=reason):
            check_structure(body, form, BUDGET)
        assert tracemalloc.get_traced_memory()[1] < 4 * MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("form", "numbers"),
    [
        (PREDICT_REQUEST, (1, 1)),
        (PREDICT_REQUEST, (1, 3)),
        (PREDICT_REQUEST, (2, 1)),
        (PREDICT_REQUEST, (3,)),
        (EXAMPLE_REQUEST, (1, 1)),
        (INFER_REQUEST, (1,)),
        (INFER_REQUEST, (3,)),
        (INFER_REQUEST, (5, 1)),
        (INFER_REQUEST, (6, 1)),
    ],
)
def test_long_names_are_refused_before_they_are_read(form: Form, numbers: tuple[int, ...]) -> None:
    check_structure(within(*numbers, content=b"n" * MAX_NAME_BYTES), form, BUDGET)
    with pytest.raises(InvalidArgument, match="A name has 65537 bytes; at most 65536 are supported"):
        check_structure(within(*numbers, content=b"n" * (MAX_NAME_BYTES + 1)), form, BUDGET)


def test_refusals_name_the_budget() -> None:
    with pytest.raises(
        InvalidArgument, match=r"about \d+ bytes when decoded .*, more than the 1000 bytes of max_decoded_"
    ):
        check_structure(b"\x7a\x00" * 100, PREDICT_REQUEST, DecodedBudget(1000))


@pytest.mark.parametrize(
    "body", [b"\x0a\x05ab", b"\x0a", b"\x0a\xff", b"\x0b", b"\x80", within(2, 2, content=b"\x0a\x09")]
)
def test_malformed_messages_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^Malformed message"):
        check_structure(body, PREDICT_REQUEST, BUDGET)


@given(st.lists(st.sampled_from([b"\x0a\x00", b"\x0a\x01a", b"\x08\x01", b"\x08\x81\x01", b"\x0d1234", b"\x12\x00"])))
def test_every_record_is_counted(records: list[bytes]) -> None:
    objects = sum(record[0] & 7 == 2 for record in records)
    exact = DecodedBudget(objects * 160 + (len(records) - objects) * 72)
    check_structure(b"".join(records), Form(), exact)
    if records:
        with pytest.raises(InvalidArgument, match="max_decoded_bytes"):
            check_structure(b"".join(records), Form(), DecodedBudget(exact.size_bytes - 1))


def test_long_messages_of_few_records_are_quick() -> None:
    assert is_quick(b"\x7a\x00" * 100, PREDICT_REQUEST)
    assert is_quick(within(2, 2, 4, content=bytes(MEBIBYTE)), PREDICT_REQUEST)
    assert not is_quick(within(2, 2, 4, content=bytes(5 * MEBIBYTE)), PREDICT_REQUEST)
    assert not is_quick(b"\x7a\x00" * MEBIBYTE, PREDICT_REQUEST)
    assert not is_quick(b"\x0b" * MEBIBYTE, PREDICT_REQUEST)


LARGE = bytes(LARGE_CONTENTS_BYTES)
SMALL_ENTRY = within(2, content=within(1, content=b"a") + within(2, 4, content=b"abcd"))


@pytest.mark.parametrize("path", [(7,), (2, 4), (2, 2, 4)])
@pytest.mark.parametrize("before", [b"", within(1, content=b"m"), within(1, content=b"m") + SMALL_ENTRY, b"\x08\x01"])
def test_the_first_large_contents_are_found_in_the_first_bytes(path: tuple[int, ...], before: bytes) -> None:
    message = before + within(*path, content=LARGE) + within(*path, content=LARGE)
    start = message.index(LARGE)
    assert find_large(message[:4096], path) == start
    assert find_large(message, path) == start
    assert find_large(message[: start - 1], path) is None


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(within(7, content=LARGE[1:]), id="small contents"),
        pytest.param(within(6, content=LARGE), id="another field"),
        pytest.param(b"\xff" * 20, id="no tag"),
        pytest.param(b"\x0b", id="a group"),
        pytest.param(b"\x08\x01" * 1000 + within(7, content=LARGE), id="many fields"),
    ],
)
def test_nothing_is_found_in_other_messages(head: bytes) -> None:
    assert find_large(head, (7,)) is None


@given(st.binary(max_size=200))
def test_any_first_bytes_are_read(head: bytes) -> None:
    found = find_large(head, (2, 2, 4))
    assert found is None or found > 0
