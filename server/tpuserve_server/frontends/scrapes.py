"""Scrapes: requests for the metrics page. They choose its format, and share the pages that a worker thread renders."""

from collections.abc import Callable
from typing import Final, TypeAlias

from tpuserve_server.frontends.http.accept import LEAST_WEIGHT, parse_accept
from tpuserve_server.frontends.shared_work import SharedWork

# Returns a body and its content type. Blocks.
Render: TypeAlias = Callable[[], tuple[bytes, str]]

_OPEN_METRICS: Final = "application/openmetrics-text"
# Versions that a client may name. A client that names none takes any.
_VERSIONS: Final = ("", "0.0.1", "1.0.0")
_TEXT: Final = ("text/plain", "text/*", "*/*")


class Scrapes:
    """Renders the pages. A page takes milliseconds, so all clients that wait share it."""

    def __init__(self, render: Render, render_open_metrics: Render | None) -> None:
        """Render the text format, and OpenMetrics unless `render_open_metrics` is None."""
        self._render = render
        self._render_open_metrics = render_open_metrics
        self._pages = SharedWork[tuple[bytes, str]]()

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """Return the body and the content type for a client with this Accept header."""
        if self._render_open_metrics is not None and prefers_open_metrics(accept):
            return await self._pages.result(self._render_open_metrics)
        return await self._pages.result(self._render)


def prefers_open_metrics(accept: str) -> bool:
    """Return whether a client with this Accept header takes OpenMetrics 1.0.0, and no other format rather."""
    ranges = parse_accept(accept)
    text = max((each.weight for each in ranges if each.media_type in _TEXT), default=0.0)
    own = [each.weight for each in ranges if each.media_type == _OPEN_METRICS and each.version in _VERSIONS]
    return max(own, default=0.0) >= max(text, LEAST_WEIGHT)
