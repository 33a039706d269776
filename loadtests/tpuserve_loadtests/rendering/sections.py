"""What every page is made of: the verdict in words, tiles, tables, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpuserve_loadtests.rendering.markup import Markup, element

# "plan": neither, as nothing was done.
Kind: TypeAlias = Literal["good", "bad", "warn", "plan"]


@dataclass(frozen=True, slots=True)
class Headline:
    """What a report comes to, in a few words, and why."""

    kind: Kind
    words: str
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure, large."""

    name: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Of a table; `whole`: sums up the others. `good` colours its last cell. `note`: what to know, below the name."""

    name: str
    cells: Sequence[str]
    whole: bool = False
    good: bool | None = None
    note: str = ""


def show_headline(headline: Headline) -> Markup:
    """The first thing that is seen."""
    items = [element("ul", *(element("li", reason) for reason in headline.reasons))] if headline.reasons else []
    return element("section", element("strong", headline.words), *items, class_=f"verdict {headline.kind}")


def show_tiles(tiles: Sequence[Tile]) -> Markup:
    """Side by side."""
    shown = [
        element(
            "div",
            element("span", tile.name, class_="name"),
            element("b", tile.figure),
            element("span", tile.note, class_="quiet"),
        )
        for tile in tiles
    ]
    return element("section", *shown, class_="tiles", aria_label="In short")


def show_part(title: str, headline: Headline, sections: Sequence[Markup], anchor: str) -> Markup:
    """Sections that belong together, below what they come to; `anchor`: where links to it lead."""
    items = [element("ul", *(element("li", reason) for reason in headline.reasons))] if headline.reasons else []
    told = element("p", headline.words, class_=f"{headline.kind}-text")
    head = element("section", element("h2", title, id=anchor), told, *items, class_=f"part {headline.kind}")
    return element("div", head, *(section for section in sections if section), role="group", aria_labelledby=anchor)


def show_charts(title: str, charts: Sequence[Markup], intro: str = "") -> Markup:
    """A section of charts; nothing of none."""
    drawn = [chart for chart in charts if chart]
    if not drawn:
        return Markup()
    told = element("p", intro, class_="quiet") if intro else Markup()
    return element("section", element("h2", title), told, element("div", *drawn, class_="charts"))


def show_table(
    title: str, headings: Sequence[str], rows: Sequence[Row], intro: str = "", *, words: bool = False
) -> Markup:
    """Numbers in columns, or words, which stand below each other on a phone; nothing of no rows."""
    if not rows:
        return Markup()
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    kind = ("numbers pair" if len(headings) == 3 else "numbers") + (" words" if words else "")
    table = element(
        "table", element("thead", head), element("tbody", *(_row(row, headings) for row in rows)), class_=kind
    )
    told = element("p", intro, class_="quiet") if intro else Markup()
    return element("section", element("h2", title), told, element("div", table, class_="scrolls"))


def show_settings(settings: Mapping[str, str]) -> Markup:
    """Names and values; empty values are left out."""
    pairs = [part for name, value in settings.items() if value for part in (element("dt", name), element("dd", value))]
    return element("section", element("h2", "Settings"), element("dl", *pairs))


def _row(row: Row, headings: Sequence[str]) -> Markup:
    kinds = [""] * len(row.cells)
    if row.good is not None:
        kinds[-1] = "good-text" if row.good else "bad-text"
    cells = [
        element("td", cell, data_what=what, class_=kind or None)
        for cell, what, kind in zip(row.cells, headings[1:], kinds, strict=True)
    ]
    note = [element("span", row.note, class_="note")] if row.note else []
    return element("tr", element("th", row.name, *note, scope="row"), *cells, class_="whole" if row.whole else None)
