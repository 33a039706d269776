"""PageFiles: the files of the console's page, read once at the start."""

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

# Every file of the page has one of these.
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
PAGE: Final = "index.html"


class PageFile(NamedTuple):
    """One file. `etag` changes with its content."""

    content: bytes
    content_type: str
    etag: str


class PageFiles:
    """The files by name. A name that is not in the package is unknown, so a request cannot reach another file."""

    def __init__(self) -> None:
        """Read the files of the package. Blocks."""
        folder = files("tpuserve_server.frontends.console").joinpath("page")
        self._by_name = {
            entry.name: _read(entry.read_bytes(), content_type)
            for entry in folder.iterdir()
            for suffix, content_type in _TYPES.items()
            if entry.name.endswith(suffix)
        }

    def find(self, name: str) -> PageFile | None:
        """Return a file, or None for an unknown name."""
        return self._by_name.get(name)


def _read(content: bytes, content_type: str) -> PageFile:
    return PageFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
