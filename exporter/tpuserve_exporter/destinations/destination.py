"""Destination: where versions of one model are published, whole or not at all."""

import contextlib
from pathlib import Path
from typing import Protocol

from tpuserve_exporter.options.export_options import VersionChoice
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.version.published_version import PublishedVersion


class Destination(Protocol):
    """One base path. A published version never changes. Every method but the first may raise PublishFailed."""

    @property
    def model_name(self) -> str:
        """What servers call the model, by convention: the last part of the base path."""
        ...

    def check(self, choice: VersionChoice) -> None:
        """Refuse what cannot be published to, or a number that is taken, before the work is done."""
        ...

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """A path on a local disk to write a version to. Whatever is left of it afterwards is removed."""
        ...

    def newest(self) -> PublishedVersion | None:
        """The version of the highest number; None where there is none."""
        ...

    def publish(self, staged: Path, choice: VersionChoice) -> int:
        """Make `staged` a version, and return its number."""
        ...

    def locate(self, version: int) -> OutBase:
        """Where that version is, or would be."""
        ...


def open_destination(out_base: OutBase) -> Destination:
    """The destination of a base path; nothing is connected or made yet. Raises MissingExtra for a store's library."""
    if isinstance(out_base, Path):
        from tpuserve_exporter.destinations.local_directory import LocalDirectory

        return LocalDirectory(out_base)
    from tpuserve_exporter.destinations.object_store import ObjectStore

    return ObjectStore(out_base)
