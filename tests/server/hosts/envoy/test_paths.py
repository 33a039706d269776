"""Tests for the regular expressions of the paths that Envoy rejects. tests/e2e tests Envoy itself."""

import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from hypothesis import example, given
from hypothesis import strategies as st

from tpuserve_server.hosts.envoy.paths import HAS_ENCODED_BYTES, IS_ASCII, IS_TEXT


def is_refused(path: str) -> bool:
    # Envoy matches the whole path, like fullmatch.
    is_ascii, has_bytes = re.fullmatch(IS_ASCII, path) is not None, re.fullmatch(HAS_ENCODED_BYTES, path) is not None
    return not is_ascii or (has_bytes and re.fullmatch(IS_TEXT, path) is None)


def is_text(path: str) -> bool:
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.binary(max_size=12) | st.text(max_size=6).map(str.encode))
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xe0\x80\x80")
@example(b"\xc0\x80")
def test_exactly_the_paths_that_are_no_text_are_refused(name: bytes) -> None:
    path = "/v1/models/" + quote_from_bytes(name)
    assert is_refused(path) == (not is_text(path))
    assert is_refused(path.lower()) == (not is_text(path.lower()))


@given(st.text("%0189aAcCfF/:", max_size=12))
def test_no_path_that_is_no_text_gets_through(path: str) -> None:
    assert is_refused(path) or is_text(path)
    # An incomplete escape has no meaning. It may pass only without encoded bytes above 127.
    assert not is_refused(path) or re.search("%[89a-fA-F]", path)
