"""Decimal numbers in the headers and texts of a server's response, which may be anything."""

from typing import Final

_MAX_INT64: Final = 2**63 - 1
_MOST_DIGITS: Final = len(str(_MAX_INT64))


def read_decimal(text: str) -> int | None:
    """Return the number of a text of ASCII digits, or None for any other text and for numbers beyond an int64.

    Python's int also takes other digits, signs and underscores, and raises ValueError for thousands of digits.
    """
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        return None
    number = int(text)
    return number if number <= _MAX_INT64 else None
