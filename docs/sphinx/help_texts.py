"""Asterisks in help texts, such as those of gates, which reStructuredText would read as emphasis."""

from typing import Final

import click
from sphinx.application import Sphinx

_PARTS: Final = ("description", "options", "epilog")


def _escape(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the function with Sphinx, after the extension sphinx_click."""
    for part in _PARTS:
        app.connect(f"sphinx-click-process-{part}", _escape)
    return {"parallel_read_safe": True}
