"""Tests of request ids."""

import pytest

from tpuserve_server.observe.requests.request_id import echo_request_id, identify_response, read_request_id


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
