"""HostMemory: refuses loads whose files need more memory than the machine or the control group has free."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tpuserve_server.core.terms.errors import ResourceExhausted

# Maximum wait for other loads. A load that hangs keeps its reservation.
_PATIENCE_S: Final = 60.0
_GIB = 2**30
# Files of control groups, version 2 and 1 (Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst):
# limit, use, and the statistic of the page cache, which the kernel can reclaim.
_CGROUP_FILES: Final = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


class HostMemory:
    """Free memory, shared by all loads. Thread-safe: `_changed` guards `_reserved_bytes`."""

    def __init__(self, root: Path = Path("/"), *, patience_s: float = _PATIENCE_S) -> None:
        """Read files below `root`. `patience_s`: maximum wait for other loads."""
        self._root = root
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._reserved_bytes = 0

    @contextlib.contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Reserve memory for the duration of a load. Wait if it would only fit after other loads have ended.

        Raises:
            ResourceExhausted: less memory is free.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._fits(size_bytes), self._patience_s)
            free_bytes = self.free_bytes()
            if free_bytes is not None and size_bytes > free_bytes:
                raise ResourceExhausted(
                    f"the files to load have {size_bytes / _GIB:.1f} GiB, and {free_bytes / _GIB:.1f} GiB of memory "
                    "are free"
                )
            self._reserved_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._reserved_bytes -= size_bytes
                self._changed.notify_all()

    def free_bytes(self) -> int | None:
        """Return the memory that this process can still use, or None if the system does not report it."""
        free = [self._machine_bytes()]
        free += [self._cgroup_bytes(group, *files) for group in self._cgroups() for files in _CGROUP_FILES]
        return min((one for one in free if one is not None), default=None)

    def _fits(self, size_bytes: int) -> bool:
        """Return whether a wait for other loads is useless or over."""
        free_bytes = self.free_bytes()
        return free_bytes is None or self._reserved_bytes == 0 or size_bytes + self._reserved_bytes <= free_bytes

    def _machine_bytes(self) -> int | None:
        available = self._read_statistics("proc/meminfo").get("MemAvailable:")
        return None if available is None else available * 1024

    def _cgroups(self) -> list[str]:
        """Return the paths of this process's control group and of those around it. A container sees its own as root."""
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        # The line of version 2 (cgroups(7)).
        own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        return [str(path) for path in (Path(own), *Path(own).parents)]

    def _cgroup_bytes(self, group: str, limit: str, used: str, cached: tuple[str, ...]) -> int | None:
        """Return the free memory of a control group, or None if it has no limit."""
        folder = self._root / "sys/fs/cgroup" / group
        try:
            limit_bytes = int((folder / limit).read_text())
            used_bytes = int((folder / used).read_text())
        except (OSError, ValueError):
            # No such version of control groups, or no limit: `max`.
            return None
        statistics = self._read_statistics(str(Path("sys/fs/cgroup", group, limit).parent / "memory.stat"))
        return max(limit_bytes - used_bytes + sum(statistics.get(name, 0) for name in cached), 0)

    def _read_statistics(self, file: str) -> dict[str, int]:
        try:
            lines = [line.split() for line in (self._root / file).read_text().splitlines()]
            return {words[0]: int(words[1]) for words in lines if len(words) >= 2}
        except (OSError, ValueError):
            return {}


def total_size(*paths: Path) -> int:
    """Return the size of files, and of all files in directories, in bytes. Missing ones count as 0."""
    sizes = (file.stat().st_size for path in paths for file in ([path] if path.is_file() else path.glob("*")))
    with contextlib.suppress(OSError):
        return sum(sizes)
    return 0
