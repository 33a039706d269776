"""A report as one self-contained HTML page, without other files or URLs."""

from collections.abc import Iterable
from typing import Final

from tpuserve_formats.markup import Markup, element

# The browser must not fetch anything, even if a name in the content contains markup.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
# Name of the element with the time, of the Dublin Core Metadata Initiative's terms.
WRITTEN_AT: Final = "dcterms.created"


def render_document(
    title: str, content: Iterable[Markup], *, style: Markup, script: Markup, written_at: str = ""
) -> str:
    """Return the whole page, with `content` in its main element. `style` is CSS and `script` JavaScript.

    `written_at` is a time in UTC in the form of ISO 8601, for programs that list pages; empty if unknown.
    """
    written = [element("meta", name=WRITTEN_AT, content=written_at)] if written_at else []
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        *written,
        element("link", rel="icon", href="data:,"),
        element("style", style),
    )
    body = element("body", element("main", *content), element("script", script))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"
