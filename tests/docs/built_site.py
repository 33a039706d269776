"""The addresses in a built documentation site, and those that lead nowhere or load something from another host."""

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

# Readers choose to follow these. A browser loads all other addresses by itself.
_FOLLOWED: Final = frozenset(("a", "form"))
_METADATA: Final = frozenset(("author", "canonical", "license"))
_CSS_ADDRESS: Final = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")
_MODULE: Final = re.compile(r"\b(?:import|from)\s*\(?\s*[\"']([^\"']+)[\"']")


class Page(HTMLParser):
    """The anchors and the addresses of one page. Each address is paired with its tag."""

    def __init__(self, html: str) -> None:
        """Read the page."""
        super().__init__()
        self.anchors = {""}
        self.addresses: list[tuple[str, str]] = []
        self._text_of = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag has."""
        values = {name: value or "" for name, value in attrs}
        self._text_of = tag
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        found = [values[name] for name in ("href", "src", "poster", "action", "data") if values.get(name)]
        found += [candidate.split()[0] for candidate in values.get("srcset", "").split(",") if candidate.strip()]
        found += _find_in_styles(values.get("style", ""))
        followed = tag in _FOLLOWED or values.get("rel", "") in _METADATA
        self.addresses += [("a" if followed else tag, address) for address in found]

    def handle_endtag(self, tag: str) -> None:
        """End the text of scripts and styles."""
        self._text_of = ""

    def handle_data(self, data: str) -> None:
        """Collect the addresses in scripts and styles of the page."""
        if self._text_of == "script":
            self.addresses += [("script", address) for address in _MODULE.findall(data)]
        elif self._text_of == "style":
            self.addresses += [("style", address) for address in _find_in_styles(data)]


def find_faults(site: Path) -> list[str]:
    """Return a line for each address in the pages and styles of `site` that is missing or loads from another host."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    addresses = {path: page.addresses for path, page in pages.items()}
    addresses |= {
        path: [("style", address) for address in _find_in_styles(path.read_text(encoding="utf-8"))]
        for path in sorted(site.rglob("*.css"))
    }
    return [
        f"{path.relative_to(site)}: <{tag}> {address}: {fault}"
        for path, found in addresses.items()
        for tag, address in found
        if (fault := _find_fault(site, path, tag, address, pages))
    ]


def _find_fault(site: Path, path: Path, tag: str, address: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(address)
    if parts.scheme == "data" or (tag == "a" and parts.scheme in ("http", "https", "mailto")):
        return ""
    if parts.scheme or parts.netloc:
        return "loads from another host"
    target = path if not parts.path else Path(path.parent, unquote(parts.path)).resolve()
    if parts.path.startswith("/") or not target.is_relative_to(site.resolve()):
        return "leads out of the site"
    if not target.is_file():
        return "no such file"
    if target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return ""


def _find_in_styles(text: str) -> Iterator[str]:
    matches: Iterable[re.Match[str]] = _CSS_ADDRESS.finditer(text)
    return (found[1] or found[2] for found in matches if not (found[1] or "").startswith("#"))
