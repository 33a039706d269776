"""Report rows as CSV."""

import csv
import io
from collections.abc import Sequence

from tpuserve_loadtests.rendering.report import Cells


def csv_text(rows: Sequence[Cells]) -> str:
    """Render the rows, with the headings of the first row; an empty text without rows."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return f"{value:.9g}" if isinstance(value, float) else value
