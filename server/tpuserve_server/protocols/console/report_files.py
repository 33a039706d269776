"""Report pages of a version, which the exporter or an operator puts into its directory.

The author of a version controls its files, so the server opens only regular files of the version, up to a limit.
"""

import heapq
import html
import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote

from tpuserve_formats.page import WRITTEN_AT
from tpuserve_formats.version_reports import MOST_REPORT_BYTES, REPORTS_FOLDER
from tpuserve_server.core.terms.types import ServableId

# Pages of the exporter and of load tests have both elements before their styles.
HEAD_BYTES: Final = 4096
_TITLE: Final = re.compile(r"<title>([^<]*)</title>", re.IGNORECASE)
_WRITTEN_AT: Final = re.compile(rf'<meta name="{re.escape(WRITTEN_AT)}" content="([0-9TZ:-]{{20}})"')
_MOST_CHARACTERS: Final = 120


@dataclass(frozen=True, slots=True)
class ReportHead:
    """The title of a page, and its time in UTC in the form of ISO 8601, or None for a page without one."""

    title: str
    written_at: str | None


def parse_head(start: bytes, name: str) -> ReportHead:
    """Return title and time from the first bytes of a page. A page without a title gets one from its file's name."""
    text = start.decode(errors="replace")
    found = _TITLE.search(text)
    title = " ".join(html.unescape(found[1]).split()) if found else ""
    fallback = name.removesuffix(".html").replace("-", " ").replace("_", " ")
    return ReportHead(title[:_MOST_CHARACTERS] or fallback, _parse_time(text))


def _parse_time(text: str) -> str | None:
    found = _WRITTEN_AT.search(text)
    if found is None:
        return None
    try:
        datetime.fromisoformat(found[1])
    except ValueError:
        return None
    return found[1]


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.html")
_MOST_REPORTS: Final = 50
# Most entries of the directory that the server looks at.
_MOST_ENTRIES: Final = 1000


class OpenReport(NamedTuple):
    """A report's file. The owner closes it. `size_bytes` is its size when it was opened."""

    file: BinaryIO
    size_bytes: int


def list_reports(servable: ServableId, version_path: Path) -> list[dict[str, Any]]:
    """Return title, time and address of the newest reports of a version, the newest first. Blocks.

    Reports without a time come last, by name.
    """
    entries = itertools.islice(_entries(version_path / REPORTS_FOLDER), _MOST_ENTRIES)
    newest = [name for _, name in heapq.nlargest(_MOST_REPORTS, entries)]
    base = f"/console/reports/{quote(servable.name, safe='')}/{servable.version}"
    found = []
    for name in sorted(newest):
        start = _read_start(version_path, name)
        if start is not None:
            head = parse_head(start, name)
            found.append({"title": head.title, "written_at": head.written_at, "href": f"{base}/{name}"})
    # Times of one form sort as text.
    return sorted(found, key=lambda report: report["written_at"] or "", reverse=True)


def open_report(version_path: Path, name: str) -> OpenReport | None:
    """Open a report of a version, or return None if it has none of this name. Blocks."""
    return None if _NAME.fullmatch(name) is None else _open(version_path, name)


def _read_start(version_path: Path, name: str) -> bytes | None:
    report = _open(version_path, name)
    if report is None:
        return None
    try:
        with report.file as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return None


def _open(version_path: Path, name: str) -> OpenReport | None:
    """Open a report, unless it is no regular file of the version, or too large."""
    path = version_path / REPORTS_FOLDER / name
    # Links within the base path are allowed, because Kubernetes mounts files through them.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(version_path.parent)):
        return None
    try:
        # Opening a named pipe must not block.
        file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115 - the owner closes it
    except OSError:
        return None
    info = os.fstat(file.fileno())
    if stat.S_ISREG(info.st_mode) and info.st_size <= MOST_REPORT_BYTES:
        return OpenReport(file, info.st_size)
    file.close()
    return None


def _entries(folder: Path) -> Iterator[tuple[float, str]]:
    """Yield the time and the name of each possible report."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    yield entry.stat(follow_symlinks=False).st_mtime, entry.name
    except OSError:
        # Most versions have no reports.
        return
