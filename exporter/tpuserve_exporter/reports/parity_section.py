"""Differences between the version and the source: a table of outputs, and a chart of each output by batch size."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuserve_exporter.terms.texts import difference, percent
from tpuserve_formats.counted import counted
from tpuserve_formats.markup import Markup, element

# Sizes of the drawing in pixels. Its natural width is that of a phone, less the page's margins.
_WIDTH, _HEIGHT = 320.0, 180.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 8.0, 12.0, 40.0
# A logarithmic scale has no zero, so zero gets a separate line below it.
_ZERO_Y = _HEIGHT - _BOTTOM
_LOWEST_Y = _ZERO_Y - 18.0
_MOST_TICKS = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """One point: the largest difference in batches of `column`, loaded by `series`. None stands for infinity."""

    column: str
    series: str
    value: float | None


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic y axis from 10**`low` to 10**`high`."""

    low: int
    high: int

    @classmethod
    def around(cls, values: Sequence[float]) -> "_Scale":
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1))

    def y(self, value: float | None) -> float:
        if value is None:
            return _TOP
        if value == 0:
            return _ZERO_Y
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return _LOWEST_Y - part * (_LOWEST_Y - _TOP)


def draw_differences(marks: Sequence[Mark], atol: float) -> Markup:
    """Draw an SVG with a line at `atol`. Marks show their numbers on hover and to screen readers."""
    columns = list(dict.fromkeys(mark.column for mark in marks))
    series = list(dict.fromkeys(mark.series for mark in marks))
    values = [mark.value for mark in marks if mark.value] + ([atol] if atol > 0 else [])
    scale = _Scale.around(values or [1e-6])
    largest = max((math.inf if mark.value is None else mark.value for mark in marks), default=0.0)
    label = f"Largest difference {difference(largest if math.isfinite(largest) else None)}, tolerance {atol:g} or more"
    parts = [*_grid(scale), *_limit(scale, atol), *_columns(columns)]
    parts += [_point(mark, columns, series, scale) for mark in marks]
    drawing = element("svg", *parts, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=label)
    keys = [element("span", name, class_=f"key series-{number}") for number, name in enumerate(series)]
    return Markup(drawing + element("div", *keys, class_="legend"))


def _x(number: int, of: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (number + 0.5) / of


def _grid(scale: _Scale) -> list[Markup]:
    every = math.ceil((scale.high - scale.low) / _MOST_TICKS)
    lines = [(scale.y(10.0**power), f"1e{power}") for power in range(scale.low, scale.high + 1, every)]
    return [part for y, text in [(_ZERO_Y, "0"), *lines] for part in _line(y, text)]


def _line(y: float, text: str) -> tuple[Markup, Markup]:
    return (
        element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"),
        element("text", text, x=_LEFT - 6, y=y + 4, class_="tick end"),
    )


def _limit(scale: _Scale, atol: float) -> list[Markup]:
    if atol <= 0:
        return []
    y = scale.y(atol)
    return [
        element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="limit"),
        element(
            "text", f"atol {atol:g}", x=_WIDTH - _RIGHT, y=y - 4 if y > _TOP + 8 else y + 12, class_="tick end limit"
        ),
    ]


def _columns(columns: Sequence[str]) -> list[Markup]:
    """Label the columns. If there are many, label some of them and always the last, which is a padded batch."""
    every = math.ceil(len(columns) / 7)
    named = [number for number in range(len(columns)) if number % every == 0 or number == len(columns) - 1]
    return [
        element("text", word, x=_x(number, len(columns)), y=_ZERO_Y + 16 + 12 * line, class_="tick middle")
        for number in named
        for line, word in enumerate(columns[number].split())
    ]


def _point(mark: Mark, columns: Sequence[str], series: Sequence[str], scale: _Scale) -> Markup:
    """Draw a mark. Series are side by side in a column, so that equal values do not hide each other."""
    number = series.index(mark.series)
    x = _x(columns.index(mark.column), len(columns)) + 8 * (number - (len(series) - 1) / 2)
    tooltip = f"batch of {mark.column}, loaded by {mark.series}: {difference(mark.value)}"
    return element(
        "g", element("title", tooltip), element("circle", cx=x, cy=scale.y(mark.value), r=4.0),
        class_=f"point series-{number}",
    )  # fmt: skip


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


def show_tables(document: Mapping[str, Any]) -> Markup:
    """Show the rows of tables, such as embeddings, that the samples of the checks touch."""
    tables = document.get("tables") or ()
    if not tables:
        return Markup()
    heading = element("tr", *(element("th", name) for name in ("Table", "Rows in the samples", "Rows")))
    cells = [(element("code", one["name"]), f"{one['touched']:,}", f"{one['rows']:,}") for one in tables]
    rows = [element("tr", *(element("td", cell) for cell in row)) for row in cells]
    intro = "The comparison covers these rows. To cover others, give rows that use them with --check."
    return element(
        "section",
        element("h2", "Tables in the samples"),
        element("p", intro, class_="quiet"),
        element("div", element("table", element("thead", heading), element("tbody", *rows)), class_="scrolls"),
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
