"""A version that is there already, as far as it is read before another is published."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version that is there already: its manifest's text, None without one, and its files' sizes in bytes."""

    number: int
    manifest: bytes | None
    sizes: Mapping[str, int]
