"""A description of each page for search engines: its first paragraph."""

from html import escape

from docutils import nodes
from sphinx.application import Sphinx

_MOST_CHARACTERS = 300


def _describe(app: Sphinx, page: str, template: str, context: dict[str, str], document: nodes.document | None) -> None:
    first = document.next_node(nodes.paragraph) if document else None
    if first is not None:
        text = " ".join(first.astext().split())[:_MOST_CHARACTERS]
        context["metatags"] += f'<meta name="description" content="{escape(text)}" />'


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the function with Sphinx."""
    app.connect("html-page-context", _describe)
    return {"parallel_read_safe": True}
