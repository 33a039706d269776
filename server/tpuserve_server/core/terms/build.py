"""Build: the software of a running server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Build:
    """The versions of the server and of Python."""

    version: str
    python: str
