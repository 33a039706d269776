"""HTML pages of reports: the sections of a Page in the document that all reports share."""

import importlib.resources
from datetime import datetime

from tpuserve_formats.markup import Markup, element
from tpuserve_formats.page import render_document
from tpuserve_loadtests.rendering.report import Page
from tpuserve_loadtests.rendering.sections import show_headline, show_notice, show_section, show_settings, show_tiles


def render_page(page: Page, written_at: datetime | None = None) -> str:
    """Render the page as HTML, without empty sections. `written_at` is a time in UTC."""
    sections = [
        show_notice(page.notice) if page.notice else Markup(),
        show_headline(page.headline),
        show_tiles(page.tiles) if page.tiles is not None else Markup(),
        *map(show_section, page.sections),
        show_settings(page.settings),
    ]
    heading = element("header", element("h1", page.title), element("p", page.origin, class_="quiet"))
    content = [heading, *(section for section in sections if section)]
    time = "" if written_at is None else f"{written_at:%Y-%m-%dT%H:%M:%SZ}"
    return render_document(page.title, content, style=_read("page.css"), script=_read("page.js"), written_at=time)


def _read(name: str) -> Markup:
    return Markup(importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
