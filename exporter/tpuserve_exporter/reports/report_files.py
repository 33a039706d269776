"""Report files: an HTML page if the file name ends in .html or .htm, or else JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PAGES = (".html", ".htm")


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write the report. Raises OSError."""
    path.write_text(_render(path, document), encoding="utf-8")


def _render(path: Path, document: Mapping[str, Any]) -> str:
    if path.suffix.lower() not in _PAGES:
        return json.dumps(document, indent=2) + "\n"
    from tpuserve_exporter.reports.page import render_page

    return render_page(document)
