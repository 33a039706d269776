"""The report in a few lines of HTML, for the output of a notebook cell, with the notebook's colours."""

from collections.abc import Mapping
from typing import Any

from tpuserve_exporter.reports.facts import describe_outcome, list_facts
from tpuserve_exporter.reports.parity_section import show_outputs
from tpuserve_formats.markup import Markup, element

_BOX = "border:1px solid;border-radius:8px;padding:.6em 1em;margin:.3em 0;max-width:60em;overflow-x:auto"
_QUIET = "opacity:.65"


def render_compact(document: Mapping[str, Any]) -> str:
    """Return the HTML for `document`, the report of a successful export."""
    where = "" if document["path"] is None else f" at {document['path']}"
    outcome = f"{describe_outcome(document)}{where}"
    facts = [_fact(name, value, note) for name, value, note in list_facts(document)]
    return element(
        "div",
        element("b", document["name"]),
        f" · {outcome}",
        *(element("div", f"! {warning}") for warning in document["warnings"]),
        element("table", element("tbody", *facts)),
        show_outputs(document["manifest"]["parity"]["signatures"]),
        style=_BOX,
    )


def _fact(name: str, value: str, note: str) -> Markup:
    cells = (element("td", name), element("td", element("b", value)), element("td", note, style=_QUIET))
    return element("tr", *cells)
