"""Headers that restrict what a browser does with a response of the console."""

from collections.abc import Mapping
from typing import Final

_EVERYWHERE: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}
# Data: neither a page nor anything that a browser keeps.
DATA_HEADERS: Final[Mapping[str, str]] = {
    **_EVERYWHERE,
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
# The page and its files. No script or style may be inline, and none may come from elsewhere.
PAGE_HEADERS: Final[Mapping[str, str]] = {
    **_EVERYWHERE,
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}
# Reports are written by the author of a version. Their scripts run in a separate origin, without network.
REPORT_HEADERS: Final[Mapping[str, str]] = {
    **_EVERYWHERE,
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "sandbox allow-scripts allow-modals; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
