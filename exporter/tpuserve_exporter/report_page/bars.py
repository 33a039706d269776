"""Horizontal bars with names and numbers, in a table that is readable without the bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tpuserve_exporter.units import megabytes
from tpuserve_formats.markup import Markup, element


@dataclass(frozen=True, slots=True)
class Bar:
    """One row. `value` is the bar's length relative to the others, or None without a bar. `text` is its number."""

    name: str
    value: float | None
    text: str
    bad: bool = False


def draw_bars(bars: Sequence[Bar], names: Literal["text", "code"] = "text") -> Markup:
    longest = max((bar.value or 0.0 for bar in bars), default=0.0) or 1.0
    return element("table", element("tbody", *(_row(bar, longest) for bar in bars)), class_=f"bars {names}")


def _row(bar: Bar, longest: float) -> Markup:
    kind = "bar bad" if bar.bad else "bar"
    drawn = [] if bar.value is None else [element("span", class_=kind, style=f"width:{100 * bar.value / longest:.1f}%")]
    return element("tr", element("th", bar.name, *drawn, scope="row"), element("td", bar.text))


def draw_largest(sizes: Mapping[str, int], most: int) -> Markup:
    """Draw bars for the `most` largest sizes in bytes, and a row with the total of the others."""
    ranked = sorted(sizes.items(), key=lambda one: -one[1])
    bars = [Bar(name, size, megabytes(size)) for name, size in ranked[:most]]
    rest = ranked[most:]
    if rest:
        bars.append(Bar(f"{len(rest)} more", None, megabytes(sum(size for _, size in rest))))
    return draw_bars(bars, names="code")
