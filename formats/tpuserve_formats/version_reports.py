"""Paths of report pages in a version. Exporter and load tests write them, and the server shows them.

The manifest does not list these files. TensorFlow Serving ignores them, as all of `assets.extra`.
"""

from pathlib import Path
from typing import Final

REPORTS_FOLDER: Final = Path("assets.extra/tpuserve/reports")
EXPORT_REPORT: Final = REPORTS_FOLDER / "export.html"
# Servers show no larger pages.
MOST_REPORT_BYTES: Final = 8 << 20
