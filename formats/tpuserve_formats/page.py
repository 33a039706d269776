"""A report as one self-contained HTML page, without other files or URLs."""

from collections.abc import Iterable

from tpuserve_formats.markup import Markup, element

# The browser must not fetch anything, even if a name in the content contains markup.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_document(title: str, content: Iterable[Markup], *, style: Markup, script: Markup) -> str:
    """Return the whole page, with `content` in its main element. `style` is CSS and `script` JavaScript."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", style),
    )
    body = element("body", element("main", *content), element("script", script))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"
