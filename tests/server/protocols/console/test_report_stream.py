"""Tests for the response with a report page."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tpuserve_server.protocols.console.console import ReportStream
from tpuserve_server.protocols.console.report_files import OpenReport

CONTENT = bytes(range(256)) * 4096  # 1 MiB


def opened(path: Path, content: bytes = CONTENT) -> OpenReport:
    path.write_bytes(content)
    return OpenReport(path.open("rb"), len(content))


async def sent(report: OpenReport) -> list[MutableMapping[str, Any]]:
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("A report needs nothing of the request's body")

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    try:
        await ReportStream(report, {"x-frame-options": "DENY"})({"type": "http", "method": "GET"}, receive, send)
    finally:
        assert report.file.closed
    return messages


async def test_a_report_is_sent_in_small_pieces(tmp_path: Path) -> None:
    start, *bodies, last = await sent(opened(tmp_path / "r.html"))
    assert dict(start["headers"]) == {
        b"x-frame-options": b"DENY", b"content-length": b"1048576", b"content-type": b"text/html; charset=utf-8"
    }  # fmt: skip
    assert b"".join(message["body"] for message in bodies) == CONTENT
    assert max(len(message["body"]) for message in bodies) <= 1 << 18
    assert all(message["more_body"] for message in bodies)
    assert (last["body"], last.get("more_body", False)) == (b"", False)


async def test_what_is_appended_meanwhile_is_not_sent(tmp_path: Path) -> None:
    report = opened(tmp_path / "r.html", b"abc")
    with (tmp_path / "r.html").open("ab") as file:
        file.write(b"def")
    assert [message["body"] for message in await sent(report) if "body" in message] == [b"abc", b""]


async def test_a_file_that_becomes_shorter_is_not_passed_off_as_whole(tmp_path: Path) -> None:
    report = opened(tmp_path / "r.html")
    (tmp_path / "r.html").write_bytes(b"")
    with pytest.raises(EOFError, match="became shorter"):
        await sent(report)
