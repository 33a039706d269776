"""An existing version, as the exporter reads it before it publishes another."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """An existing version: the bytes of its manifest and of its signatures, or None, and the sizes of its files."""

    number: int
    manifest: bytes | None
    sizes: Mapping[str, int]
    signatures: bytes | None = None
