"""Interface of the places where versions of one model are published, whole or not at all."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tpuserve_exporter.options.export_options import VersionChoice
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.version.manifest import PublishedVersion


class Destination(Protocol):
    """One base path. A published version never changes. Every method except `model_name` may raise PublishFailed."""

    @property
    def model_name(self) -> str:
        """The model's name in servers: by convention, the last part of the base path."""
        ...

    def check(self, choice: VersionChoice) -> None:
        """Raise PublishFailed early if the base cannot be published to, or the version number is taken."""
        ...

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """Return a path on a local disk to write a version to. Its remains are removed afterwards."""
        ...

    def newest(self) -> PublishedVersion | None:
        """Return the version of the highest number, or None if there is no version."""
        ...

    def publish(self, staged: Path, choice: VersionChoice, seal: Callable[[int], None] = lambda _: None) -> int:
        """Make `staged` a version, and return its number. `seal` gets each number to try, and may add files."""
        ...

    def locate(self, version: int) -> OutBase:
        """Return the location of that version, which may not exist yet."""
        ...


def open_destination(out_base: OutBase) -> Destination:
    """Return the destination of a base path, without connecting. Raises MissingExtra without a store's library."""
    if isinstance(out_base, Path):
        from tpuserve_exporter.destinations.local_directory import LocalDirectory

        return LocalDirectory(out_base)
    from tpuserve_exporter.destinations.object_store import ObjectStore

    return ObjectStore(out_base)
