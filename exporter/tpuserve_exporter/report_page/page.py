"""The report of an export as one page: no file and no address beside it, to be read, mailed, printed or kept."""

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

Document: TypeAlias = Mapping[str, Any]

# Nothing is fetched, whatever a name in the model may contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_page(document: Document) -> str:
    """`document` is the JSON report of an export, be it of one that was published or of one that failed."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"Export of {document.get('name') or 'a model'}"),
        element("link", rel="icon", href="data:,"),
        element("style", _read("page.css")),
    )
    body = element("body", element("main", *_sections(document)), element("script", _read("page.js")))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


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
