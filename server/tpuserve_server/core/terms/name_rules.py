"""Rules for names and paths in configurations: a length, and no character that breaks a line of a log."""

import unicodedata
from typing import Final

from tpuserve_server.core.terms.errors import InvalidArgument

MAX_NAME_CHARACTERS: Final = 256
# Linux' limit on a path. Object stores have shorter names.
MAX_PATH_CHARACTERS: Final = 4096
_MOST_SHOWN: Final = 64
# Control characters (C0, DEL and C1), and Unicode's separators of lines and paragraphs.
_FORBIDDEN: Final = frozenset(("Cc", "Zl", "Zp"))


def check_name(what: str, text: str) -> None:
    """Check the name of a model, a label or a tensor. `what` begins the message. Raises InvalidArgument."""
    _check(what, text, MAX_NAME_CHARACTERS)


def check_path(what: str, text: str) -> None:
    """Check a base path or a prefix of files. `what` begins the message. Raises InvalidArgument."""
    _check(what, text, MAX_PATH_CHARACTERS)


def _check(what: str, text: str, max_characters: int) -> None:
    if len(text) > max_characters:
        raise InvalidArgument(
            f"{what} {text[:_MOST_SHOWN]!r}… has {len(text)} characters. The limit is {max_characters}"
        )
    if text.isprintable():
        return
    for index, character in enumerate(text):
        if unicodedata.category(character) in _FORBIDDEN:
            shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
            raise InvalidArgument(
                f"{what} {shown!r} has the control character U+{ord(character):04X} at position {index}. Remove it"
            )
