"""Title and time of a report page, from the head of its HTML."""

import html
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tpuserve_formats.page import WRITTEN_AT

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
