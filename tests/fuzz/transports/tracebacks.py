"""Tracebacks in the log of a server under attack."""

from typing import Final

_BEGIN: Final = "Traceback (most recent call last):\n"
_MOST_LINES: Final = 40


def own_tracebacks(log: str) -> list[str]:
    """Return the tracebacks in a log, except grpcio's own: it prints one for a call that its client resets."""
    _, *blocks = log.split(_BEGIN)
    tracebacks = ["\n".join(block.split("\n")[:_MOST_LINES]) for block in blocks]
    return [text for text in tracebacks if "_cygrpc/aio" not in text or "tpuserve_server" in text]
