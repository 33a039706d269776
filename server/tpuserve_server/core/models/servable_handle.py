"""ServableHandle: keeps a version loaded while a request uses it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from tpuserve_server.core.models.loader import Loaded
from tpuserve_server.core.models.model_record import VersionRecord


class ServableHandle:
    """A handle on a loaded version, which stays loaded until `release`. Release once, or use as a context manager."""

    __slots__ = ("_release", "_version", "loaded", "servable_id")

    def __init__(self, release: Callable[[VersionRecord], None], version: VersionRecord, loaded: Loaded) -> None:
        """Call `release` with the version at the end."""
        self._release = release
        self._version = version
        self.servable_id = version.aspired.servable
        self.loaded = loaded

    def release(self) -> None:
        """Release the version, which may then be unloaded."""
        self._release(self._version)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
