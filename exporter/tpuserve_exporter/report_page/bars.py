"""Horizontal bars with their names and numbers: a table, so that it reads without its bars too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tpuserve_exporter.units import megabytes
from tpuserve_formats.markup import Markup, element


@dataclass(frozen=True, slots=True)
class Bar:
    """`value` is its length among the others', None for one without a bar; `text` is what it says."""

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
    """The `most` largest, by name, and what the others come to together. In bytes."""
    ranked = sorted(sizes.items(), key=lambda one: -one[1])
    bars = [Bar(name, size, megabytes(size)) for name, size in ranked[:most]]
    rest = ranked[most:]
    if rest:
        bars.append(Bar(f"{len(rest)} more", None, megabytes(sum(size for _, size in rest))))
    return draw_bars(bars, names="code")
