"""Counted: a number with its noun, for messages to people."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes a plural `s` unless the number is 1: `1 run`, `1,000 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
