"""The report of an export as one self-contained HTML page."""

import importlib.resources
from collections.abc import Mapping
from typing import Any, TypeAlias

from tpuserve_exporter.report_page.facts import show_facts, show_heading, show_warnings
from tpuserve_exporter.report_page.parity_section import show_parity
from tpuserve_exporter.report_page.preflight_section import show_preflight
from tpuserve_exporter.report_page.samples_section import show_samples
from tpuserve_exporter.report_page.serving_section import show_serving, show_signatures
from tpuserve_exporter.report_page.sizes_section import show_files, show_steps
from tpuserve_exporter.report_page.variables_section import show_variables
from tpuserve_formats.markup import Markup, element
from tpuserve_formats.page import render_document

Document: TypeAlias = Mapping[str, Any]


def render_page(document: Document) -> str:
    """Return the page for `document`, the JSON report of a published or failed export."""
    title = f"Export of {document.get('name') or 'a model'}"
    written_at = document["manifest"]["created_at"] if document["ok"] else ""
    return render_document(
        title, _sections(document), style=_read("page.css"), script=_read("page.js"), written_at=written_at
    )


def _sections(document: Document) -> list[Markup]:
    shown = [
        show_heading(document),
        show_warnings(document),
        show_facts(document),
        show_samples(document),
        show_parity(document),
        show_preflight(document),
        show_signatures(document),
        show_variables(document),
        element("div", show_files(document), show_steps(document), class_="pair"),
        show_serving(document),
    ]
    return [section for section in shown if section]


def _read(name: str) -> Markup:
    return Markup(importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
