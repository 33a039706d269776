"""Tests for long strings in large JSON values, against Python's parser and base64."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.json import long_strings, tensor
from tpuserve_server.wire.json.tensor import decode_predict_inputs, parse_predict_body

SIGNATURE = Signature("s", {"s": TensorSpec("s", np.dtype(np.object_), (None,))}, {})
LONG = b"a" * 100


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat short bodies and strings as long ones are treated."""
    monkeypatch.setattr(long_strings, "_LONG_BYTES", 8)
    monkeypatch.setattr(long_strings, "_PART_BYTES", 12)
    monkeypatch.setattr(tensor, "is_large", lambda body: True)


def decode(body: bytes) -> list[Any]:
    return decode_predict_inputs(parse_predict_body(body), SIGNATURE).inputs["s"].reshape(-1).tolist()


@given(st.lists(st.text('a"\\\n\u00e9\u4e2d\U0001f600/{}[],: ', max_size=60), min_size=1, max_size=4), st.booleans())
def test_strings_of_any_length_read_back(texts: list[str], ascii_only: bool) -> None:
    expected = [text.encode() for text in texts]
    for value in (texts, [[text] for text in texts]):
        assert decode(json.dumps({"instances": value}, ensure_ascii=ascii_only).encode()) == expected
        assert decode(json.dumps({"inputs": {"s": value}}, ensure_ascii=ascii_only, indent=1).encode()) == expected
    rows = [{"s": text} for text in texts]
    assert decode(json.dumps({"instances": rows}, ensure_ascii=ascii_only).encode()) == expected


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.booleans())
def test_base64_of_any_length_reads_back(values: list[bytes], padded: bool) -> None:
    texts = [base64.b64encode(value).decode() for value in values]
    rows = [{"b64": text if padded else text.rstrip("=")} for text in texts]
    assert decode(json.dumps({"instances": rows}).encode()) == values


def test_whitespace_around_values_is_no_part_of_them() -> None:
    blank = b" \n" * 50
    body = b'{"instances":[' + blank + b'"x"' + blank + b"," + blank + b'"' + LONG + b'"' + blank + b"]}"
    assert decode(body) == [b"x", LONG]


@pytest.mark.parametrize(
    "values",
    [
        b'"%b\\ud83d"' % LONG,
        b'"%b\n"' % LONG,
        b'"%b\xff"' % LONG,
        b'"%b\\u00g0"' % LONG,
        b'"%b"x' % LONG,
        b'x"%b"' % LONG,
        b'"%b" "%b"' % (LONG, LONG),
        b'"x""%b"' % LONG,
        b'"%b",' % LONG,
        b"1" * 100,
        LONG,
        b'{"b64":"%b!"}' % LONG,
        b'{"b65":"%b"}' % LONG,
        b'{"b64":"%b","c":1}' % LONG,
        b'["%b"],"x"' % LONG,
    ],
)
def test_malformed_long_values_are_refused(values: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(b'{"instances":[%b]}' % values)
    assert len(caught.value.message) < 300
