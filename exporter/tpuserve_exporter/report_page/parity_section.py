"""Differences between the version and the source: a table of outputs, and a chart of each output by batch size."""

from collections.abc import Iterator, Mapping
from typing import Any

from tpuserve_exporter.report_page.difference_chart import Mark, draw_differences
from tpuserve_exporter.units import difference, percent
from tpuserve_formats.counted import counted
from tpuserve_formats.markup import Markup, element

_HEADINGS = ("output", "largest", "mean", "top-1")


def show_parity(document: Mapping[str, Any]) -> Markup:
    parity = document["manifest"]["parity"] if document["ok"] else document
    found = parity.get("signatures") or parity.get("parity") or {}
    if not found:
        return Markup()
    atol, rtol = parity["atol"], parity["rtol"]
    intro = (
        "Each batch size, and a padded batch, run by the exported version in a session (as servers load it) and in "
        f"Python, compared with the answers of the source model. The tolerance per element is {atol:g} + {rtol:g} * "
        "|expected|."
    )
    outputs = [(name, output) for name, signature in found.items() for output in signature["outputs"]]
    equal = [(name, output) for name, output in outputs if _is_equal(output, found[name]["buckets"])]
    charts = [
        _chart(name, output, found[name]["buckets"], atol) for name, output in outputs if (name, output) not in equal
    ]
    return element(
        "section",
        element("h2", "Differences from the source"),
        element("p", intro, class_="quiet"),
        element("div", show_outputs(found), class_="scrolls"),
        *([element("p", _describe_equal(equal, outputs))] if equal else []),
        *([element("div", *charts, class_="charts")] if charts else []),
    )


def _is_equal(output: str, buckets: list[Mapping[str, Any]]) -> bool:
    """Return whether the output is equal in every batch, so that its chart would be empty."""
    found = [bucket["outputs"][output]["max_abs_difference"] for bucket in buckets if output in bucket["outputs"]]
    return bool(found) and all(value == 0 for value in found)


def _describe_equal(equal: list[tuple[str, str]], outputs: list[tuple[str, str]]) -> str:
    if len(equal) == len(outputs):
        return "All answers are bit-identical."
    return f"These outputs are bit-identical: {', '.join(f'{output} of {name}' for name, output in equal)}."


def show_outputs(found: Mapping[str, Any]) -> Markup:
    """Return a table of every signature's outputs."""
    head = element("tr", *(element("th", heading, scope="col") for heading in _HEADINGS))
    return element("table", element("thead", head), element("tbody", *_rows(found)), class_="numbers")


def _rows(found: Mapping[str, Any]) -> Iterator[Markup]:
    for name, signature in found.items():
        for output, one in signature["outputs"].items():
            values = (
                difference(one["max_abs_difference"]),
                difference(one["mean_abs_difference"]),
                percent(one["top1_agreement"]),
            )
            compared = f" of {name}, {counted(signature['comparisons'], 'comparison')}"
            label = element("th", element("b", output), element("span", compared, class_="quiet"), scope="row")
            cells = [element("td", value, data_what=what) for what, value in zip(_HEADINGS[1:], values, strict=True)]
            yield element("tr", label, *cells)


def _chart(name: str, output: str, buckets: list[Mapping[str, Any]], atol: float) -> Markup:
    marks = [
        Mark(
            column=_column(bucket),
            series=bucket["loaded_by"],
            value=bucket["outputs"][output]["max_abs_difference"],
        )
        for bucket in buckets
        if output in bucket["outputs"]
    ]
    caption = element("figcaption", element("b", output), element("span", f" of {name}, by batch size", class_="quiet"))
    return element("figure", caption, draw_differences(marks, atol))


def _column(bucket: Mapping[str, Any]) -> str:
    size = "all" if bucket["batch_size"] is None else str(bucket["batch_size"])
    return f"{size} padded" if bucket["padded"] else size
