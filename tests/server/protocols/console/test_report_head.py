"""Tests for titles and times of report pages, also of pages that other programs wrote."""

import pytest

from tpuserve_formats.markup import Markup
from tpuserve_formats.page import render_document
from tpuserve_server.protocols.console.report_files import HEAD_BYTES, ReportHead, parse_head


def test_page_of_this_project_has_both_in_its_first_bytes() -> None:
    title = f'Highest rate of "m" within p99<=20ms {"é" * 200}'
    page = render_document(title, [], style=Markup("p{}" * 9999), script=Markup(), written_at="2026-01-02T03:04:05Z")
    assert parse_head(page.encode()[:HEAD_BYTES], "a.html") == ReportHead(title[:120], "2026-01-02T03:04:05Z")


@pytest.mark.parametrize(
    ("start", "title"),
    [
        (b"", "my report 2"),
        (b"<title></title>", "my report 2"),
        (b"<TITLE>\n Two\n lines </TITLE>", "Two lines"),
        (b"<title>cut off", "my report 2"),
        (b"<title>\xff\xfe</title>", "��"),
    ],
)
def test_title_is_one_line_and_never_empty(start: bytes, title: str) -> None:
    assert parse_head(start, "my-report_2.html") == ReportHead(title, None)


@pytest.mark.parametrize("time", ["2026-99-02T03:04:05Z", "2026-01-02", "12345678901234567890"])
def test_invalid_time_is_ignored(time: str) -> None:
    assert parse_head(f'<meta name="dcterms.created" content="{time}"/>'.encode(), "a.html").written_at is None
