"""Pictures that Markdown gives as HTML: `<img>`, and `<picture>` with a version for dark pages.

GitHub needs this HTML for the width and the dark version. Sphinx copies only the files of its own image nodes, so this
extension puts them in the place of the HTML. The theme's switch between light and dark then also selects the picture.
"""

from html.parser import HTMLParser

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_PICTURE = {"picture", "source", "img"}


class _Images(HTMLParser):
    """The image nodes of one piece of HTML. `foreign` are its tags that belong to no picture."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.images: list[nodes.image] = []
        self.foreign: set[str] = set()
        self._dark: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag not in _PICTURE:
            self.foreign.add(tag)
        elif tag == "source" and "dark" in values["media"]:
            self._dark = values["srcset"]
        elif tag == "img":
            given = {name: values[name] for name in ("alt", "width") if name in values}
            themes = {values["src"]: "only-light", self._dark: "only-dark"} if self._dark else {values["src"]: ""}
            self.images += [nodes.image(uri=uri, classes=theme.split(), **given) for uri, theme in themes.items()]
            self._dark = None


class _PicturesToImages(SphinxTransform):
    """Replaces HTML of pictures before Sphinx collects the images."""

    default_priority = 100

    def apply(self) -> None:
        for html in list(self.document.findall(nodes.raw)):
            found = _Images(html.astext())
            if html.get("format") == "html" and found.images and not found.foreign:
                html.replace_self(found.images)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform with Sphinx."""
    app.add_transform(_PicturesToImages)
    return {"parallel_read_safe": True}
