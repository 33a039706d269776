"""Sizes of files and durations of steps."""

from collections.abc import Mapping
from typing import Any

from tpuserve_exporter.report_page.bars import Bar, draw_bars, draw_largest
from tpuserve_exporter.units import seconds
from tpuserve_formats.markup import Markup, element

_MOST_FILES = 8


def show_files(document: Mapping[str, Any]) -> Markup:
    if not document["ok"]:
        return Markup()
    sizes = {name: one["size_bytes"] for name, one in document["manifest"]["files"].items()}
    return element("section", element("h2", "Files"), draw_largest(sizes, _MOST_FILES))


def show_steps(document: Mapping[str, Any]) -> Markup:
    steps = document.get("steps") or ()
    if not steps:
        return Markup()
    bars = [_describe(step) for step in steps]
    return element("section", element("h2", "Steps"), draw_bars(bars))


def _describe(step: Mapping[str, Any]) -> Bar:
    title = f"{step['title']} (failed)" if step.get("failed") else step["title"]
    return Bar(title, step["seconds"], seconds(step["seconds"]), bad=bool(step.get("failed")))
