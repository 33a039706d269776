"""HTML pages of reports: the sections of a Page in the document that all reports share."""

import importlib.resources
from collections.abc import Sequence
from datetime import datetime
from itertools import chain

from tpuserve_formats.markup import Markup, element
from tpuserve_formats.page import render_document
from tpuserve_loadtests.rendering.chart import Chart
from tpuserve_loadtests.rendering.drawing import draw_chart, draw_intervals
from tpuserve_loadtests.rendering.report import Charts, Group, Headline, Page, Remark, Row, Section, Table, Tile


def render_page(page: Page, written_at: datetime | None = None) -> str:
    """Render the page as HTML, without empty sections. `written_at` is a time in UTC."""
    top = []
    if page.notice:
        meaning = element("p", page.notice.meaning, class_="quiet")
        top.append(element("section", element("strong", page.notice.words), meaning, class_="disclaimer"))
    words = element("strong", page.headline.words)
    top.append(element("section", words, *_reasons(page.headline), class_=f"verdict {page.headline.kind}"))
    if page.tiles is not None:
        top.append(element("section", *map(_show_tile, page.tiles), class_="tiles", aria_label="Summary"))
    pairs = [(element("dt", name), element("dd", value)) for name, value in page.settings.items() if value]
    settings = element("section", element("h2", "Settings"), element("dl", *chain.from_iterable(pairs)))
    sections = [*top, *map(show_section, page.sections), settings]
    heading = element("header", element("h1", page.title), element("p", page.origin, class_="quiet"))
    content = [heading, *(section for section in sections if section)]
    time = "" if written_at is None else f"{written_at:%Y-%m-%dT%H:%M:%SZ}"
    return render_document(page.title, content, style=_read("page.css"), script=_read("page.js"), written_at=time)


def _read(name: str) -> Markup:
    return Markup(importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _show_tile(tile: Tile) -> Markup:
    name, note = element("span", tile.name, class_="name"), element("span", tile.note, class_="quiet")
    return element("div", name, element("b", tile.figure), note)


def show_section(section: Section) -> Markup:
    """Render a section of any kind; an empty text if the section is empty."""
    match section:
        case Table() | Remark() if section.on == "terminal":
            return Markup()
        case Table():
            return _show_table(section)
        case Charts():
            return _show_charts(section)
        case Remark():
            return _show_remark(section)
        case Group():
            return _show_group(section)
        case None:
            return Markup()


def _reasons(headline: Headline) -> list[Markup]:
    cause, others = headline.reasons[:1], headline.reasons[1:]
    listed = [element("ul", *(element("li", reason) for reason in others))] if others else []
    return [*(element("p", reason, class_="cause") for reason in cause), *listed]


def _intro(text: str) -> Markup:
    return element("p", text, class_="quiet") if text else Markup()


def _show_group(group: Group) -> Markup:
    headline = group.headline
    content = element("p", headline.words, class_=f"{headline.kind}-text")
    title = element("h2", group.title, id=group.anchor)
    head = element("section", title, content, *_reasons(headline), class_=f"part {headline.kind}")
    shown = [section for section in map(show_section, group.sections) if section]
    return element("div", head, *shown, role="group", aria_labelledby=group.anchor)


def _show_charts(charts: Charts) -> Markup:
    drawn = [draw_chart(each) if isinstance(each, Chart) else draw_intervals(each) for each in charts.charts if each]
    if not drawn:
        return Markup()
    figures = element("div", *drawn, class_="charts")
    return element("section", element("h2", charts.title), _intro(charts.intro), figures)


def _show_remark(remark: Remark) -> Markup:
    if not remark.lines:
        return Markup()
    if not remark.title:
        return element("section", *(element("p", line) for line in remark.lines), class_="quiet")
    lines = (element("p", line, class_="quiet") for line in remark.lines)
    return element("section", element("h2", remark.title), *lines)


def _show_table(table: Table) -> Markup:
    if not table.rows:
        return Markup()
    headings = table.headings
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    kind = ("numbers pair" if len(headings) == 3 else "numbers") + (" words" if table.words else "")
    body = element("tbody", *(_row(row, headings) for row in table.rows))
    shown = element("div", element("table", element("thead", head), body, class_=kind), class_="scrolls")
    return element("section", element("h2", table.title), _intro(table.intro), shown)


def _row(row: Row, headings: Sequence[str]) -> Markup:
    kinds = [""] * len(row.cells)
    if row.good is not None:
        kinds[-1] = "good-text" if row.good else "bad-text"
    cells = [
        element("td", cell, data_what=what, class_=kind or None)
        for cell, what, kind in zip(row.cells, headings[1:], kinds, strict=True)
    ]
    note = [element("span", row.note, class_="note")] if row.note else []
    if row.share is not None:
        note.append(element("span", class_="share", style=f"width:{100 * row.share:.1f}%"))
    name = element("a", row.name, href=f"#{row.anchor}") if row.anchor else row.name
    return element("tr", element("th", name, *note, scope="row"), *cells, class_="whole" if row.is_total else None)
