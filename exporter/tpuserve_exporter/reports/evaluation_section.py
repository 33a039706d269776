"""The metrics on labelled rows in the report page, or the line that names the missing check."""

from collections.abc import Mapping
from typing import Any

from tpuserve_exporter.checks.evaluation import UNCHECKED
from tpuserve_formats.manifest.version import ManifestEvaluation, ManifestMetric
from tpuserve_formats.markup import Markup, element

_HEADINGS = ("metric", "value", "expected", "output", "labels", "")


def show_evaluation(document: Mapping[str, Any]) -> Markup:
    """Return the section of a successful export, or of one that failed because of a metric."""
    content = document["manifest"].get("evaluation") if document["ok"] else document.get("evaluation")
    if content is None:
        is_checked = not document["ok"] or document.get("examples")
        return Markup() if is_checked else element("section", element("p", f"{UNCHECKED}.", class_="quiet"))
    found = ManifestEvaluation.model_validate(content)
    head = element("tr", *(element("th", heading, scope="col") for heading in _HEADINGS))
    table = element("table", element("thead", head), element("tbody", *map(_row, found.metrics)), class_="variables")
    rows = f"{found.rows:,} row(s) of {found.file} · sha256 {found.sha256}"
    return element(
        "section",
        element("h2", "Metrics on labelled rows"),
        element("p", rows, class_="quiet"),
        element("div", table, class_="scrolls"),
    )


def _row(metric: ManifestMetric) -> Markup:
    badge = element("span", "met" if metric.met else "not met", class_=f"badge {'good' if metric.met else 'bad'}")
    note = f"{metric.labels} ({metric.note})" if metric.note else metric.labels
    cells = (metric.metric, metric.shown, metric.expected, f"{metric.signature}/{metric.output}", note, badge)
    return element("tr", *(element("td", cell) for cell in cells))
