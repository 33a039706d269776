"""Counted: a number with its noun, for messages to people. The core imports no other distribution's."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes a plural `s` unless the number is 1: `1 row`, `1000 rows`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
