"""Tests for report pages in a version's directory: only its own regular files are read."""

import os
from pathlib import Path

import pytest

from tpuserve_formats.markup import Markup
from tpuserve_formats.page import render_document
from tpuserve_formats.version_reports import REPORTS_FOLDER
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.protocols.console import report_files
from tpuserve_server.protocols.console.report_files import HEAD_BYTES, ReportHead, list_reports, open_report, parse_head

ID = ServableId("a/b", 3)


def read_report(version: Path, name: str) -> bytes | None:
    report = open_report(version, name)
    if report is None:
        return None
    with report.file as file:
        content = file.read()
    assert len(content) == report.size_bytes
    return content


@pytest.fixture
def version(tmp_path: Path) -> Path:
    path = tmp_path / "m" / "3"
    (path / REPORTS_FOLDER).mkdir(parents=True)
    (path / REPORTS_FOLDER / "export.html").write_bytes(b"<p>export</p>")
    return path


def test_reports_are_listed_with_their_titles_the_newest_first(version: Path) -> None:
    folder = version / REPORTS_FOLDER
    for name in ("load-test_2.html", "notes.txt", ".hidden.html", "a b.html"):
        (folder / name).touch()
    for name, title, written_at in (
        ("export.html", "Export of a<b", "2026-01-02T03:04:05Z"),
        ("loadtest-1.html", "Load test of a<b", "2026-01-03T00:00:00Z"),
    ):
        page = render_document(title, [], style=Markup(), script=Markup(), written_at=written_at)
        (folder / name).write_text(page)
    base = "/console/reports/a%2Fb/3"
    assert list_reports(ID, version) == [
        {"title": "Load test of a<b", "written_at": "2026-01-03T00:00:00Z", "href": f"{base}/loadtest-1.html"},
        {"title": "Export of a<b", "written_at": "2026-01-02T03:04:05Z", "href": f"{base}/export.html"},
        {"title": "load test 2", "written_at": None, "href": f"{base}/load-test_2.html"},
    ]


def test_a_version_without_reports_lists_none(tmp_path: Path) -> None:
    assert list_reports(ID, tmp_path) == []


def test_many_reports_are_limited_to_the_newest(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "_MOST_REPORTS", 2)
    for number in range(5):
        path = version / REPORTS_FOLDER / f"{number}.html"
        path.touch()
        os.utime(path, (number, 4e9 - number))
    assert [report["title"] for report in list_reports(ID, version)] == ["0", "1"]


def test_a_report_is_read(version: Path) -> None:
    assert read_report(version, "export.html") == b"<p>export</p>"


@pytest.mark.parametrize("name", ["none.html", "../export.html", "export.html/", "export.HTML", "", "export.html\0"])
def test_other_names_have_no_report(version: Path, name: str) -> None:
    assert read_report(version, name) is None


def test_a_link_out_of_the_base_path_is_not_followed(version: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.html").write_text("secret")
    (version / REPORTS_FOLDER / "link.html").symlink_to(tmp_path / "secret.html")
    assert read_report(version, "link.html") is None
    assert len(list_reports(ID, version)) == 1


def test_a_link_within_the_base_path_is_followed(version: Path) -> None:
    (version / "data.html").write_text("data")
    (version / REPORTS_FOLDER / "link.html").symlink_to(version / "data.html")
    assert read_report(version, "link.html") == b"data"


def test_a_pipe_and_a_directory_are_not_read(version: Path) -> None:
    os.mkfifo(version / REPORTS_FOLDER / "pipe.html")
    (version / REPORTS_FOLDER / "folder.html").mkdir()
    assert read_report(version, "pipe.html") is None
    assert read_report(version, "folder.html") is None


def test_a_large_file_is_not_read(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "MOST_REPORT_BYTES", 5)
    assert read_report(version, "export.html") is None


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
