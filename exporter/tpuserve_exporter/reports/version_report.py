"""The report in the directory of a version, which servers show to every client of their console."""

import time
from pathlib import Path

from tpuserve_exporter.reports.page import render_page
from tpuserve_exporter.reports.shown_progress import RecordedProgress
from tpuserve_exporter.reports.summary import success_document
from tpuserve_exporter.stages.exported import Exported
from tpuserve_formats.version_reports import EXPORT_REPORT


class VersionReport:
    """A writer of the page. `started_s` is the monotonic time at which the export started, in seconds."""

    def __init__(self, progress: RecordedProgress, started_s: float) -> None:
        self._progress = progress
        self._started_s = started_s

    def write(self, exported: Exported, version: Path) -> None:
        """Write the page into the directory `version` before publication, when it has no number. Raises OSError.

        The page contains no samples, because clients of the server must not see the user's data.
        """
        document = success_document(exported, time.monotonic() - self._started_s, self._progress.steps)
        path = version / EXPORT_REPORT
        path.parent.mkdir(parents=True)
        path.write_text(render_page({**document, "published": True, "samples": []}), encoding="utf-8")
