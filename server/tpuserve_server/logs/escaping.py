"""Escapes characters that could begin another line, or that a terminal would obey, in text from clients and models."""

import re
from typing import Final

# Control characters of ASCII and Latin-1, the separators of lines and paragraphs, the marks that reorder text, and
# surrogates, which have no UTF-8.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Begins every line of an event but the first. No event begins with a space.
CONTINUATION: Final = "    "


def escape(text: str) -> str:
    """Return `text` on one line, with `\\n`, `\\x1b` or `\\u2028` in place of unsafe characters."""
    return _UNSAFE.sub(_escaped, text)


def escape_json(text: str) -> str:
    """Return a JSON document on one line. Its unsafe characters are in strings, so their escapes are valid there."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def indent(text: str) -> str:
    """Return lines of text, such as a traceback, as the further lines of an event. Empty text has none."""
    if not text:
        return ""
    return "".join(f"\n{CONTINUATION}{escape(line)}" for line in text.rstrip("\n").split("\n"))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
