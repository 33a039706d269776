"""Tests for the trace headers of a client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.observe.requests.trace_context import (
    Parent,
    TraceHeaders,
    client_trace_id,
    echo_request_id,
    identify_response,
    read_parent,
    read_request_id,
    read_state,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def parent(value: str) -> Parent | None:
    return read_parent(TraceHeaders(value.encode("latin-1")))


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f" 00-{TRACE}-{SPAN}-01\t", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_a_valid_header_is_a_parent(value: str, is_sampled: bool) -> None:
    assert parent(value) == Parent(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "garbage",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-x,01-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01x",
        f"00-{TRACE[:-1]}é-{SPAN}-01",
    ],
)
def test_an_invalid_header_is_no_parent(value: str) -> None:
    assert parent(value) is None


@given(st.binary(max_size=80))
def test_no_header_is_an_error(value: bytes) -> None:
    read_parent(TraceHeaders(value, value))


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b"a=1,b=2", "a=1,b=2"),
        (b" a=1 ,\t, b=2,", "a=1,b=2"),
        (b"tenant@vendor=x y", "tenant@vendor=x y"),
        (b"", ""),
        (b"a=1,a=2", ""),
        (b"A=1", ""),
        (b"a", ""),
        (b"a=", ""),
        (b"a=1=2", ""),
        (b"a=\xff", ""),
        (b",".join(b"k%d=1" % n for n in range(32)), ",".join(f"k{n}=1" for n in range(32))),
        (b",".join(b"k%d=1" % n for n in range(33)), ""),
        (b"a=" + b"x" * 511, ""),
    ],
)
def test_a_tracestate_is_passed_on_if_it_is_valid_and_bounded(value: bytes, state: str) -> None:
    assert read_state(value) == state


def test_an_invalid_tracestate_does_not_invalidate_the_parent() -> None:
    headers = TraceHeaders(f"00-{TRACE}-{SPAN}-01".encode(), b"A=1")
    assert read_parent(headers) == Parent(TRACE, SPAN, True)


def test_the_trace_of_a_client_is_that_of_its_valid_header() -> None:
    assert client_trace_id(None) == ""
    assert client_trace_id(TraceHeaders(f"00-{TRACE}\n-{SPAN}-00".encode())) == ""
    assert client_trace_id(TraceHeaders(f"01-{TRACE}-{SPAN}-00-more".encode())) == TRACE


@pytest.mark.parametrize("raw", [b"a", b"x" * 128, b"1b4e28ba-2fa1", b'!"#~'])
def test_a_valid_id_is_echoed(raw: bytes) -> None:
    trailers: list[tuple[str, str]] = []
    echo_request_id(raw, trailers)
    assert trailers == [("x-request-id", raw.decode())]
    assert identify_response(trailers) == raw.decode()


@pytest.mark.parametrize("raw", [None, b"", b"x" * 129, b"a b", b"a\n", b"\x1b[31m", "é".encode(), b"\x7f"])
def test_an_invalid_id_is_ignored_and_an_error_gets_a_new_one(raw: bytes | None) -> None:
    trailers = [("server-timing", "x")]
    echo_request_id(raw, trailers)
    assert len(trailers) == 1
    made = identify_response(trailers)
    assert trailers == [("server-timing", "x"), ("x-request-id", made)]
    assert read_request_id(made.encode()) == made
    assert identify_response(trailers) == made
    assert identify_response([]) != made
