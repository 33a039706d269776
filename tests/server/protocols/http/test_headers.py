import math

import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.protocols.http.content import GZIP
from tpuserve_server.protocols.http.headers import MediaRange, RequestHeaders, parse_accept, prefers_html, read_headers
from tpuserve_server.protocols.status import BodyTooLarge, UnsupportedEncoding

LIMIT = 100
TIMEOUT = b"x-tpuserve-timeout-ms"
PRIORITY = b"x-tpuserve-priority"


def read(*headers: tuple[bytes, bytes]) -> RequestHeaders:
    return read_headers({"headers": [(b"host", b"h"), *headers, (b"accept", b"*/*")]}, LIMIT)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], RequestHeaders()),
        ([(b"content-length", b"100")], RequestHeaders()),
        # The server rejects invalid lengths.
        ([(b"content-length", b"many")], RequestHeaders()),
        ([(b"content-encoding", b"gzip")], RequestHeaders(GZIP)),
        ([(TIMEOUT, b"250")], RequestHeaders(timeout_s=0.25)),
        ([(TIMEOUT, b" 0.5 ")], RequestHeaders(timeout_s=0.0005)),
        ([(TIMEOUT, b"8.759313713112393")], RequestHeaders(timeout_s=8.759313713112393 / 1000)),
        ([(TIMEOUT, b"9223372036854775807")], RequestHeaders(timeout_s=1e10)),
        ([(TIMEOUT, b"1000"), (PRIORITY, b"low")], RequestHeaders(timeout_s=1, priority=Priority.LOW)),
        ([(PRIORITY, b"low"), (b"content-encoding", b"gzip")], RequestHeaders(GZIP, math.inf, Priority.LOW)),
    ],
)
def test_what_is_asked_is_read(headers: list[tuple[bytes, bytes]], expected: RequestHeaders) -> None:
    assert read(*headers) == expected


@pytest.mark.parametrize(
    "value", [b"", b"0", b"0.0", b"-1", b"soon", b"1e3", b"inf", b"nan", b"1_0", b"9" * 21, b"1,5"]
)
def test_a_timeout_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidArgument, match="x-tpuserve-timeout-ms must be a positive number of milliseconds; was"):
        read((TIMEOUT, value))


@pytest.mark.parametrize(("name", "value"), [(TIMEOUT, b"5"), (PRIORITY, b"low")])
def test_what_is_said_twice_is_refused(name: bytes, value: bytes) -> None:
    with pytest.raises(InvalidArgument, match=f"{name.decode()} must be"):
        read((name, value), (name, value))


def test_bodies_too_large_or_encoded_otherwise_are_refused_before_they_are_read() -> None:
    with pytest.raises(BodyTooLarge):
        read((b"content-length", b"101"))
    with pytest.raises(UnsupportedEncoding):
        read((b"content-encoding", b"br"))


def test_parts_have_types_versions_and_weights() -> None:
    assert parse_accept('Text/HTML, a/b; version="1.0.0";q=0.5 ,*/*;q=none,') == [
        MediaRange("text/html", "", 1.0),
        MediaRange("a/b", "1.0.0", 0.5),
        MediaRange("*/*", "", 0.0),
        MediaRange("", "", 1.0),
    ]


@pytest.mark.parametrize(
    ("accept", "is_html"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("TEXT/HTML", True),
        ("text/html, application/json", True),
        ("text/html;q=0.5, application/json", False),
        ("text/html;q=0", False),
        ("text/html;q=nan", False),
        ("text/*", False),
        ("*/*", False),
        ("", False),
        ("text/htmlx", False),
    ],
)
def test_only_clients_that_name_html_prefer_it(accept: str, is_html: bool) -> None:
    assert prefers_html(accept) is is_html
