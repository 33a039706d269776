"""Accept: the media types that a client takes, with their weights (RFC 9110, 12.5.1)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

_HTML: Final = "text/html"
_JSON: Final = "application/json"
# The least weight of a media type that a client takes.
LEAST_WEIGHT: Final = 1e-3


class MediaRange(NamedTuple):
    """A part of an Accept header, in lower case. `version` is empty if the client names none. 0 weighs "not at all"."""

    media_type: str
    version: str
    weight: float


def parse_accept(accept: str) -> list[MediaRange]:
    """Return the parts of an Accept header. A weight that is no number counts as 0."""
    return [_parse(part) for part in accept.lower().split(",")]


def prefers_html(accept: str) -> bool:
    """Return whether a client names HTML, as browsers do, and takes no JSON rather."""
    ranges = parse_accept(accept)
    html, json = (
        max((each.weight for each in ranges if each.media_type == wanted), default=0.0) for wanted in (_HTML, _JSON)
    )
    return html >= max(json, LEAST_WEIGHT)


def _parse(part: str) -> MediaRange:
    media_type, *parameters = (piece.strip() for piece in part.split(";"))
    version, weight = _parameter("version", parameters), _parameter("q", parameters)
    try:
        return MediaRange(media_type, version.strip('"'), float(weight or 1))
    except ValueError:
        return MediaRange(media_type, version, 0.0)


def _parameter(name: str, parameters: Sequence[str]) -> str:
    return next((value for key, _, value in (each.partition("=") for each in parameters) if key == name), "")
