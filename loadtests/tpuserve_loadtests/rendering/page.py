"""A report as one page: no file and no address beside it, to be read, mailed, printed or kept with a build."""

import importlib.resources

from tpuserve_formats.markup import Markup, element
from tpuserve_loadtests.rendering.sections import show_headline, show_notice, show_section, show_settings, show_tiles
from tpuserve_loadtests.report_model.report import Page

# Nothing is fetched, whatever a model's name or a server's message may contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_page(page: Page) -> str:
    """HTML. Empty sections are left out."""
    sections = [
        show_notice(page.notice) if page.notice else Markup(),
        show_headline(page.headline),
        show_tiles(page.tiles) if page.tiles is not None else Markup(),
        *map(show_section, page.sections),
        show_settings(page.settings),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", page.title),
        element("link", rel="icon", href="data:,"),
        element("style", _read("page.css")),
    )
    heading = element("header", element("h1", page.title), element("p", page.origin, class_="quiet"))
    shown = [section for section in sections if section]
    body = element("body", element("main", heading, *shown), element("script", _read("page.js")))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _read(name: str) -> Markup:
    return Markup(importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
