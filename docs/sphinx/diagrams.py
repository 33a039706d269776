"""The directive `mermaid`: it places the drawing of a diagram into the page.

Markdown has the sources of diagrams, and GitHub draws them. The site has drawings in `docs/images/diagrams/`, so that
it loads no script of 5 MB. A drawing's name is the hash of its source. A changed source has no drawing, and the build
fails (decision 103). `python -m tests.docs.diagrams` draws the missing ones.
"""

import hashlib
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).resolve().parents[1] / "images/diagrams"


def find_drawing(source: str) -> Path:
    """Return the path of the drawing of a diagram. The file may not exist."""
    return FOLDER / f"{hashlib.sha256(source.strip().encode()).hexdigest()[:16]}.svg"


class _Mermaid(SphinxDirective):
    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        drawing = find_drawing("\n".join(self.content))
        if not drawing.exists():
            raise self.error("This diagram has no drawing. Run `python -m tests.docs.diagrams`.")
        figure = nodes.container(classes=["diagram"])
        figure += nodes.raw("", drawing.read_text(encoding="utf-8"), format="html")
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive with Sphinx."""
    app.add_directive("mermaid", _Mermaid)
    return {"parallel_read_safe": True}
