"""Tests for the Accept header."""

import pytest

from tpuserve_server.protocols.http.accept import MediaRange, parse_accept, prefers_html


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
