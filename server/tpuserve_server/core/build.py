"""Build: the software of a running server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Build:
    """The versions of the server and of Python, and the name of the host."""

    version: str
    python: str
    host: str
