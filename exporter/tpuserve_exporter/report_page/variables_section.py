"""Every variable, grouped by its fate in the restore, with a search, and the largest variables."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tpuserve_exporter.report_page.bars import draw_largest
from tpuserve_exporter.units import megabytes
from tpuserve_formats.markup import Markup, element, join

# Groups with more rows start collapsed, except those that made the export fail.
_MOST_OPEN = 12
_MOST_BARS = 10
# The fate of variables in a model that the exporter copies unchanged.
_SERVED = "served"
_GOOD = ("matched", "cast", _SERVED)
_SPEC = re.compile(r"(?P<dtype>[a-z]+)(?P<bits>\d*)\w*\[(?P<shape>[\d, ]*)\]")


def show_variables(document: Mapping[str, Any]) -> Markup:
    restore = document.get("restore") or _served(document.get("variables") or ())
    if restore is None:
        return Markup()
    groups = _group(restore)
    counted = ", ".join(f"{len(rows)} {fate}" for fate, rows in groups.items())
    search = element(
        "input", type="search", id="search", placeholder="Find a variable", aria_label="Find a variable", hidden=True
    )
    return element(
        "section",
        element("h2", "Variables"),
        element("p", counted or "none", class_="quiet"),
        search,
        *(_show_group(fate, rows) for fate, rows in groups.items()),
        _show_largest(restore["variables"]),
    )


def _served(variables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return a restore document for a source that the exporter copies without a restore, or None without variables."""
    if not variables:
        return None
    entries = [{"fate": _SERVED, "checkpoint": None, "allowed": False} | dict(one) for one in variables]
    return {"variables": entries, "optimizer_state": (), "bookkeeping": (), "other_models": {}}


def _group(restore: Mapping[str, Any]) -> dict[str, list[Sequence[str]]]:
    """Return rows (name, model, checkpoint) by fate. Variables that do not fit come first."""
    groups: dict[str, list[Sequence[str]]] = {}
    for one in restore["variables"]:
        fate = f"{one['fate']}, allowed" if one["allowed"] else one["fate"]
        sides = (one["model"] or "-", one["checkpoint"] or "-")
        groups.setdefault(fate, []).append((one["name"], *(sides[:1] if fate == _SERVED else sides)))
    ordered = dict(sorted(groups.items(), key=lambda group: group[0] in _GOOD))
    apart = {
        "optimizer state, not served": restore["optimizer_state"],
        "bookkeeping, not served": restore["bookkeeping"],
        **{f"of '{root}', not served": names for root, names in restore["other_models"].items()},
    }
    return ordered | {fate: [(name,) for name in names] for fate, names in apart.items() if names}


def _show_group(fate: str, rows: Sequence[Sequence[str]]) -> Markup:
    bad = fate not in _GOOD and "allowed" not in fate and "not served" not in fate
    summary = element("summary", element("span", fate, class_="bad" if bad else None), f" ({len(rows)})")
    headings = ("name", "model", "checkpoint")[: len(rows[0])]
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body), class_="variables")
    return element("details", summary, element("div", table, class_="scrolls"), open=bad or len(rows) <= _MOST_OPEN)


def _show_largest(variables: Sequence[Mapping[str, Any]]) -> Markup:
    sizes = {one["name"]: size for one in variables if (size := _size_bytes(one["model"] or ""))}
    if len(sizes) < 2:
        return Markup()
    heading = element("h3", f"Largest variables, of {megabytes(sum(sizes.values()))} in total")
    return join((heading, draw_largest(sizes, _MOST_BARS)))


def _size_bytes(spec: str) -> int:
    """Return the bytes of `float32[3, 3, 1, 32]`, or 0 for a dtype or shape without a fixed size, such as strings."""
    found = _SPEC.fullmatch(spec)
    if found is None or (not found["bits"] and found["dtype"] != "bool"):
        return 0
    dims = [int(dim) for dim in found["shape"].split(",") if dim.strip()]
    return max(int(found["bits"] or 8) // 8, 1) * math.prod(dims)
