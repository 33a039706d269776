"""Hides secrets of URIs in texts that people read: errors, logs, the console."""

import re
from typing import Final

# User and password of a URI, up to the last "@" if a password contains a slash, and its query, which may have a key or
# a signature (RFC 3986).
_USER: Final = re.compile(r"(?<=//)[^/@\s]*(?::\S*)?@")
_QUERY: Final = re.compile(r"(?<=\?)\S+")
_HIDDEN: Final = "***"


def without_secrets(text: str) -> str:
    """Return `text` with `***` for the user and the query of a URI."""
    if "//" not in text:
        return text
    return _QUERY.sub(_HIDDEN, _USER.sub(f"{_HIDDEN}@", text))
