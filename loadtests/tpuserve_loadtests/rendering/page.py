"""A report as one page: no file and no address beside it, to be read, mailed, printed or kept with a build."""

import importlib.resources
from collections.abc import Sequence

from tpuserve_loadtests.rendering.markup import Markup, element

# Nothing is fetched, whatever a model's name or a server's message may contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_page(title: str, origin: str, sections: Sequence[Markup]) -> str:
    """`origin`: in a line, what was measured and when. Empty sections are left out."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", _read("page.css")),
    )
    heading = element("header", element("h1", title), element("p", origin, class_="quiet"))
    shown = [section for section in sections if section]
    body = element("body", element("main", heading, *shown), element("script", _read("page.js")))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _read(name: str) -> Markup:
    return Markup(importlib.resources.files(__package__).joinpath(name).read_text())
