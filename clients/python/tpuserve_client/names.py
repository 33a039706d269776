"""Checks of the names in a caller's values: models, labels, signatures, inputs, outputs and features."""

import reprlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

from tpuserve_client.errors import InvalidArgument

# Longest value that a message quotes, in characters.
_SHOWN_CHARACTERS = 40


def check_name(kind: str, name: object) -> None:
    """Raise InvalidArgument unless `name` is a string with a UTF-8 encoding, which a lone surrogate does not have."""
    if not isinstance(name, str):
        raise InvalidArgument(f"The {kind} must be a string, not {shown(name)}.")
    if not str.isascii(name) and not is_utf8(name):
        raise InvalidArgument(f"The {kind} {shown(name)} has a lone surrogate, which UTF-8 cannot represent.")


def is_utf8(text: str) -> bool:
    """Return whether `text` has a UTF-8 encoding."""
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return False
    return True


def named_values(kind: str, mapping: Mapping[Any, object]) -> dict[str, object]:
    """Return a caller's mapping as a dict. Raises InvalidArgument if it cannot be read, and like `check_name`."""
    try:
        values = dict(mapping.items())
    except Exception as error:  # a caller's class can raise anything
        raise InvalidArgument(f"Cannot read the mapping from the {kind}: {error!r:.200}") from error
    for name in values:
        check_name(kind, name)
    return values


def output_names(names: object) -> tuple[str, ...]:
    """Return the outputs that a caller names: one string, or a sequence or set of strings.

    Raises InvalidArgument for any other value, and for a name that no output can have.
    """
    if type(names) is tuple and not names:  # the default
        return ()
    if isinstance(names, str):
        names = (names,)
    if not isinstance(names, Sequence | Set) or isinstance(names, bytes | bytearray | memoryview):
        raise InvalidArgument(f"output_filter must be a name or a sequence of names, not {shown(names)}.")
    try:
        listed = tuple(names)
    except Exception as error:  # a caller's class can raise anything
        raise InvalidArgument(f"Cannot read output_filter: {error!r:.200}") from error
    for name in listed:
        check_name("name of an output", name)
    return listed


def shown(value: object) -> str:
    """Return a short text of any value for a message. Lone surrogates are escaped."""
    try:
        text = reprlib.repr(value)
    except Exception:  # repr of a caller's object can raise anything
        text = f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
