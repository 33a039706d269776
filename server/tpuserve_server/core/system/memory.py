"""Memory of this process: what is free for a load, what the C library and the collector keep, pages of libraries."""

import contextlib
import ctypes
import gc
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tpuserve_server.core.terms.errors import ResourceExhausted

# Maximum wait for other loads. A load that hangs keeps its reservation.
_LOAD_PATIENCE_S: Final = 60.0
_GIB = 2**30


class _Cgroups(NamedTuple):
    """A version of control groups (Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).

    `mounted` is its directory, and `own` matches the line of /proc/self/cgroup with the group of this process
    (cgroups(7)). The other fields are files with the limit and the use, and statistics of what the kernel can reclaim:
    the page cache, and caches of the file system.
    """

    mounted: str
    own: re.Pattern[str]
    limit: str
    used: str
    reclaimable: tuple[str, ...]


_CGROUPS: Final = (
    _Cgroups(
        "sys/fs/cgroup",
        re.compile(r"^0::/(.*)$", re.MULTILINE),
        "memory.max",
        "memory.current",
        ("inactive_file", "active_file", "slab_reclaimable"),
    ),
    _Cgroups(
        "sys/fs/cgroup/memory",
        re.compile(r"^\d+:(?:[^:\n]+,)?memory(?:,[^:\n]+)?:/(.*)$", re.MULTILINE),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


class HostMemory:
    """Free memory, shared by all loads. Thread-safe: `_changed` guards `_reserved_bytes`."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        patience_s: float = _LOAD_PATIENCE_S,
        release_freed: Callable[[], None] | None = None,
    ) -> None:
        """Read files below `root`. `patience_s`: maximum wait for other loads.

        `release_freed` returns the process's freed memory to the system. None: `trim_memory`.
        """
        self._root = root
        self._patience_s = patience_s
        self._release_freed = release_freed or trim_memory
        self._changed = threading.Condition()
        self._reserved_bytes = 0
        self._relieve: Callable[[], bool] = lambda: False

    def relieve_with(self, relieve: Callable[[], bool]) -> None:
        """Call `relieve` when a load lacks memory. It frees some and returns True, or returns False if it cannot."""
        self._relieve = relieve

    @contextlib.contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Reserve memory for the duration of a load. Wait if it would only fit after other loads have ended.

        Raises:
            ResourceExhausted: less memory is free.
        """
        while not self._fits(size_bytes) and self._relieve():
            pass
        with self._changed:
            if not self._fits(size_bytes + self._reserved_bytes):
                # The C library keeps the memory of earlier batches. The system counts it as used.
                self._release_freed()
            self._changed.wait_for(
                lambda: self._reserved_bytes == 0 or self._fits(size_bytes + self._reserved_bytes), self._patience_s
            )
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
        free += [self._cgroup_bytes(version, group) for version in _CGROUPS for group in self._groups(version)]
        return min((one for one in free if one is not None), default=None)

    def _fits(self, size_bytes: int) -> bool:
        free_bytes = self.free_bytes()
        return free_bytes is None or size_bytes <= free_bytes

    def _machine_bytes(self) -> int | None:
        available = self._read_statistics("proc/meminfo").get("MemAvailable:")
        return None if available is None else available * 1024

    def _groups(self, version: _Cgroups) -> list[Path]:
        """Return the paths of this process's control group and of those around it. A container sees its own as root."""
        try:
            found = version.own.search((self._root / "proc/self/cgroup").read_text())
        except OSError:
            found = None
        own = Path(found[1] if found else "")
        return [own, *own.parents]

    def _cgroup_bytes(self, version: _Cgroups, group: Path) -> int | None:
        """Return the free memory of a control group, or None if it has no limit."""
        folder = self._root / version.mounted / group
        try:
            limit_bytes = int((folder / version.limit).read_text())
            used_bytes = int((folder / version.used).read_text())
        except (OSError, ValueError):
            # No such version of control groups, or no limit: `max`.
            return None
        statistics = self._read_statistics(str(Path(version.mounted, group, "memory.stat")))
        return max(limit_bytes - used_bytes + sum(statistics.get(name, 0) for name in version.reclaimable), 0)

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


# Options of mallopt (malloc.h), and values with which glibc maps and unmaps nothing by itself.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
# glibc maps allocations of this size while `mapping_allocations` is in force.
_MAPPED_BYTES: Final = 2**20
_ALLOCATOR_OPTIONS: Final = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_THRESHOLD: _MAPPED_BYTES, _MMAP_MAX: 0, _ARENA_MAX: 1}
# Most mappings that the allocator makes. A process may have 65,530 of all kinds (vm.max_map_count).
_MOST_MAPPED: Final = 2**14
# Variables with which the operator sets such options.
_OPERATORS_VARIABLES: Final = ("MALLOC_", "GLIBC_TUNABLES")

# Objects that refer to freed bytes, such as tracebacks, are gone after this time.
_TRIM_DELAY_S: Final = 1.0


class _Allocator:
    """Options of glibc's allocator. `_lock` guards the number of blocks that map allocations."""

    def __init__(self) -> None:
        self._set_option: Callable[[int, int], object] | None = None
        self._lock = threading.Lock()
        self._mapping = 0

    def keep_freed(self) -> None:
        if any(name.startswith(_OPERATORS_VARIABLES) for name in os.environ):
            return
        self._set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if self._set_option is not None:
            for option, value in _ALLOCATOR_OPTIONS.items():
                self._set_option(option, value)

    @contextlib.contextmanager
    def mapping(self) -> Iterator[None]:
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            self._mapping += by
            if self._set_option is not None:
                self._set_option(_MMAP_MAX, _MOST_MAPPED if self._mapping else 0)


_allocator: Final = _Allocator()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, in one heap for all threads, until `trim_memory`. Call it before threads start.

    By default glibc maps new memory for each large tensor, and the system fills its pages with zeros. Heaps of further
    threads have at most 64 MB. Does nothing with another C library or allocator, or if the operator has set options of
    glibc.
    """
    _allocator.keep_freed()


def mapping_allocations() -> contextlib.AbstractContextManager[None]:
    """Let glibc map each large allocation during the block, on all threads. Thread-safe.

    Use it for allocations that live as long as a version. Freeing them returns them to the system at once. Memory in
    the heap returns only by `trim_memory`, during which no thread can allocate: 0.2 s for 1 GB.
    """
    return _allocator.mapping()


# Fields of glibc's mallinfo2 (malloc.h): mapped and other bytes in use, and free bytes that the heap keeps.
_MALLINFO_FIELDS: Final = 10
_HBLKHD, _UORDBLKS, _FORDBLKS = 4, 7, 8
# Free memory that the heap keeps after a load or unload. Returning less costs other threads more than it is worth.
_KEPT_BYTES: Final = 64 << 20


class _Allocations(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = (("values", ctypes.c_size_t * _MALLINFO_FIELDS),)


def allocated_bytes() -> int:
    """Return the memory that this process has allocated and not freed, or its resident memory with another C library.

    The resident memory includes what the allocator keeps, so that it does not show an allocation that takes from there.
    """
    values = _allocations()
    if values is not None:
        return values[_HBLKHD] + values[_UORDBLKS]
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return 0


def _allocations() -> list[int] | None:
    """Return the fields of mallinfo2, or None with another C library."""
    find = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if find is None:
        return None
    find.restype = _Allocations
    return list(find().values)


def trim_much_memory() -> None:
    """Return freed memory to the system as `trim_memory` does, if the heap keeps more than 64 MiB."""
    values = _allocations()
    if values is None or values[_FORDBLKS] > _KEPT_BYTES:
        trim_memory()


def trim_memory() -> None:
    """Return freed memory to the system, if the C library keeps it, as glibc does."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class LateTrim:
    """Trims the memory in a thread, at most once a second."""

    def __init__(self) -> None:
        """Create it without a timer."""
        self._timer: threading.Timer | None = None

    def __call__(self) -> None:
        """Trim after a second. Does nothing if that is already due."""
        if self._timer is None or not self._timer.is_alive():
            self._timer = threading.Timer(_TRIM_DELAY_S, trim_memory)
            self._timer.name = "trim-memory"
            self._timer.daemon = True
            self._timer.start()


# Container allocations minus deallocations between collections. A request makes about fifty, which are freed by
# reference count. At 700, the default before Python 3.13, the collector would traverse the objects of a few dozen
# requests and find no garbage. Much garbage at once stops all threads: 20,000 objects take 5 ms.
_COLLECTION_THRESHOLDS = (2_000, 20, 50)


def settle_garbage_collector() -> None:
    """Exclude all current objects from later collections. Call it after every large import.

    TensorFlow's import leaves a million objects that live as long as the process. A full collection traverses them all
    with the interpreter's lock held. No request is answered for these 150 ms, which dominate p99 under load. JAX's
    objects take 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


# A private mapping of a file in smaps: its first line, and two of its further lines (man 5 proc_pid_smaps). Anonymous
# pages are those that the process has modified, such as relocated addresses.
_MAPPING: Final = re.compile(
    rb"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<access>...)p \S+ \S+ \d+ +(?P<file>/.+)\n"
    rb"(?:[A-Z]\w+: .*\n)*?Anonymous: +(?P<anonymous>\d+) kB\n(?:[A-Z]\w+: .*\n)*?Swap: +(?P<swapped>\d+) kB\n",
    re.MULTILINE,
)


class _Mapping(NamedTuple):
    """The groups of `_MAPPING`."""

    start: bytes
    end: bytes
    access: bytes
    file: bytes
    anonymous: bytes
    swapped: bytes

    @property
    def is_code(self) -> bool:
        return b"x" in self.access

    @property
    def is_clean(self) -> bool:
        """Whether the file has all content: the process cannot write to the mapping, and has not.

        A mapping may have become read-only after the process wrote to it.
        """
        return b"w" not in self.access and not int(self.anonymous) and not int(self.swapped)


def release_library_pages() -> None:
    """Unmap the unmodified pages of all libraries. Takes about 25 ms, most of them without the interpreter's lock.

    Call it when a runtime has started, and before its first request. Other threads may run meanwhile, but must unload
    no library, because another mapping could take its place.
    """
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    dont_need = getattr(mmap, "MADV_DONTNEED", None)
    if advise is None or dont_need is None:
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    mappings = _mappings()
    libraries = {mapping.file for mapping in mappings if mapping.is_code}
    for mapping in mappings:
        # MADV_DONTNEED would lose modified pages, which have no other copy.
        if mapping.is_clean and mapping.file in libraries:
            start, end = int(mapping.start, 16), int(mapping.end, 16)
            advise(start, end - start, dont_need)  # Fails for locked pages, which then stay.


def _mappings() -> list[_Mapping]:
    with contextlib.suppress(OSError):
        return [_Mapping(*found) for found in _MAPPING.findall(Path("/proc/self/smaps").read_bytes())]
    return []
