"""SharedMemoryRegions: POSIX shared memory that clients register by name, for tensors of requests and responses.

Source of the rules and messages: Triton's server/docs/protocol/extension_shared_memory.md and shared_memory_manager.cc.

The server copies tensors with pread and pwrite, and maps no memory. A client may change a region while the model reads
it, or shorten it: a mapping would then end the server with SIGBUS, and checks of a tensor would not hold for its use.
"""

import os
import stat
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.raw_tensor import Buffer, encode_raw
from tpuserve_server.core.system.alignment import aligned_bytes
from tpuserve_server.core.terms.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    TooLarge,
    Unimplemented,
)
from tpuserve_server.core.terms.types import Array, Tensors
from tpuserve_server.protocols.options import SharedMemoryOptions
from tpuserve_server.wire.oip.inference import InferenceRequest, RegionStatus, RegionWindow, RequestedOutput

_DIRECTORY: Final = "/dev/shm"
# Linux' limit on a file name.
_MAX_KEY_BYTES: Final = 255
_MAX_REGIONS: Final = 1024
_MAX_UINT64: Final = (1 << 64) - 1
_MOST_SHOWN: Final = 64
_DISABLED: Final = (
    "Client shared memory is disabled. Start the server with '--shared_memory_prefix=PREFIX' to enable it for keys "
    "that begin with PREFIX."
)


class _Region:
    """An open shared memory object. The file is closed when the last user of this object releases it."""

    __slots__ = ("file", "status")

    def __init__(self, status: RegionStatus, file: int) -> None:
        self.status = status
        self.file = file

    def __del__(self) -> None:
        os.close(self.file)


class SharedMemoryRegions:
    """The regions of all clients. Thread-safe: `_lock` guards `_regions`, and system calls run without it.

    The server opens objects that exist. It never creates, resizes or removes one.
    """

    def __init__(self, options: SharedMemoryOptions, max_request_bytes: int) -> None:
        """Start without regions. Without prefixes in `options`, clients cannot register any.

        `max_request_bytes` limits the total size of a request's inputs. A client can make a huge object without using
        memory, but its copy would use memory.
        """
        self._max_request_bytes = max_request_bytes
        self._prefixes = tuple(prefix.lstrip("/") for prefix in options.prefixes)
        self._lock = threading.Lock()
        self._regions: dict[str, _Region] = {}

    @property
    def are_enabled(self) -> bool:
        """Whether clients may register regions."""
        return bool(self._prefixes)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open the object `key`. Its window of `byte_size` bytes at `offset` becomes the region `name`.

        Raises:
            Unimplemented: the server has no prefix for keys.
            InvalidArgument: the key, the window or the object breaks a rule.
            AlreadyExists: the name is in use.
            Internal: the object cannot be opened. Triton's code.
        """
        self._check_enabled()
        file_name = self._file_name(name, key)
        self._check_free(name)
        region = _Region(RegionStatus(name, key, offset, byte_size), _open(key, file_name))
        _check_window(region.status, os.fstat(region.file))
        with self._lock:
            self._check_free(name)
            self._regions[name] = region

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all regions for None. Requests that use it finish. An unknown name changes nothing.

        Raises:
            Unimplemented: the server has no prefix for keys.
        """
        self._check_enabled()
        with self._lock:
            if name is None:
                self._regions.clear()
            else:
                self._regions.pop(name, None)

    def status(self, name: str | None = None) -> list[RegionStatus]:
        """Return a region, or all regions for None, in the order of their registration. Raises NotFound."""
        with self._lock:
            if name is None:
                return [region.status for region in self._regions.values()]
            region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find system shared memory region: '{name}'")
        return [region.status]

    def read(self, window: RegionWindow) -> memoryview:
        """Return a copy of the window's bytes, which a model reads in place. Blocks for the copy.

        Raises:
            NotFound: the region is unknown.
            InvalidArgument: the window is outside the region, or the client has shortened the object.
        """
        region = self._find(window)
        contents = aligned_bytes(window.byte_size)
        view, position = memoryview(contents), region.status.offset + window.offset
        filled = 0
        while filled < len(view):
            count = os.preadv(region.file, [view[filled:]], position + filled)
            if not count:
                raise InvalidArgument(f"shared memory region '{window.region}' is shorter than when it was registered")
            filled += count
        return view.toreadonly()

    def write(self, window: RegionWindow, output: str, data: Buffer) -> None:
        """Copy `data`, the contents of `output`, to the start of the window. Blocks for the copy.

        Raises:
            NotFound: the region is unknown.
            InvalidArgument: the window is outside the region or too small, or the client has shortened the object.
            ResourceExhausted: the system has no memory for the object.
        """
        region = self._find(window)
        if len(data) > window.byte_size:
            raise InvalidArgument(
                f"shared memory size specified with the request for output '{output}' ({window.byte_size} bytes) "
                f"should be at least {len(data)} bytes to hold the results"
            )
        view, position = memoryview(data).cast("B"), region.status.offset + window.offset
        # A write beyond the end would make the object longer.
        if position + len(view) > os.fstat(region.file).st_size:
            raise InvalidArgument(f"shared memory region '{window.region}' is shorter than when it was registered")
        written = 0
        try:
            while written < len(view):
                written += os.pwrite(region.file, view[written:], position + written)
        except OSError as error:
            # The object is sparse, and the system has no memory for it.
            raise ResourceExhausted(
                f"cannot write to shared memory region '{window.region}': {error.strerror}"
            ) from None

    def with_inputs(self, request: InferenceRequest) -> InferenceRequest:
        """Return `request` with copies of the inputs that are in regions, and check the regions of its outputs. Blocks.

        Raises:
            TooLarge: the inputs in regions are larger than a request may be.
            ServingError: as `read`.
        """
        windows = request.windows or {}
        if (size_bytes := sum(window.byte_size for window in windows.values())) > self._max_request_bytes:
            raise TooLarge(
                f"the inputs in shared memory have {size_bytes} bytes, over the limit of {self._max_request_bytes} "
                "bytes of --max_request_bytes"
            )
        for output in request.outputs:
            if output.region is not None:
                self._find(output.region)
        inputs = [
            tensor._replace(data=self.read(windows[index])) if index in windows else tensor
            for index, tensor in enumerate(request.inputs)
        ]
        return request._replace(inputs=inputs, size_bytes=request.size_bytes + size_bytes)

    def write_outputs(self, outputs: Tensors, requested: Mapping[str, RequestedOutput]) -> Collection[str]:
        """Write the outputs that a request wants in regions, and return their names. Blocks.

        Raises:
            ServingError: as `write`.
        """
        windows = {name: each.region for name, each in requested.items() if each.region is not None}
        for name, window in windows.items():
            self.write(window, name, _contents(name, outputs[name]))
        return windows.keys()

    def _find(self, window: RegionWindow) -> _Region:
        with self._lock:
            region = self._regions.get(window.region)
        name = window.region
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{name}'")
        size_bytes = region.status.byte_size
        if window.offset < 0 or window.byte_size < 0 or window.offset >= size_bytes:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{name}'")
        if window.offset + window.byte_size > _MAX_UINT64:
            raise InvalidArgument(
                f"Integer overflow detected: byte_size ({window.byte_size}) + offset ({window.offset}) exceeds maximum "
                f"value ({_MAX_UINT64}) for region '{name}'"
            )
        if window.offset + window.byte_size > size_bytes:
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{name}'")
        return region

    def _check_enabled(self) -> None:
        if not self._prefixes:
            raise Unimplemented(_DISABLED)

    def _check_free(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= _MAX_REGIONS:
            raise InvalidArgument(
                f"cannot register shared memory region '{name}': {_MAX_REGIONS} regions are registered, which is the "
                "limit. Unregister one first"
            )

    def _file_name(self, name: str, key: str) -> str:
        """Return the name of the key's file. Raises InvalidArgument for a key that is a path or has no prefix."""
        file_name = key.lstrip("/")
        if (
            file_name in ("", ".", "..")
            or "/" in file_name
            or "\0" in file_name
            or len(os.fsencode(file_name)) > _MAX_KEY_BYTES
        ):
            raise _wrong_key(name, key, "invalid shm key")
        if not _begins_with(file_name, self._prefixes):
            shown = " or ".join(f"'/{prefix}'" for prefix in self._prefixes)
            raise _wrong_key(name, key, f"this server allows only keys that begin with {shown}, got")
        return file_name


def _contents(name: str, array: Array) -> Buffer:
    try:
        return encode_raw(array)
    except FormatError as error:
        raise InvalidArgument(f"output '{name}': {error}") from None


def _begins_with(name: str, prefixes: Iterable[str]) -> bool:
    return any(name.startswith(prefix) for prefix in prefixes)


def _wrong_key(name: str, key: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"cannot register shared memory region '{name}' - {why} '{key[:_MOST_SHOWN]}'")


def _open(key: str, file_name: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(os.path.join(_DIRECTORY, file_name), flags)
    except (OSError, UnicodeError):
        raise Internal(f"Unable to open shared memory region: '{key[:_MOST_SHOWN]}'") from None


def _check_window(status: RegionStatus, found: os.stat_result) -> None:
    """Check the opened object. Raises ServingError."""
    if not stat.S_ISREG(found.st_mode):
        raise _refused(status, f"'{status.key}' is not a shared memory object")
    if found.st_uid not in (os.geteuid(), 0):
        raise _refused(status, f"'{status.key}' belongs to another user than the server's and root")
    if status.byte_size <= 0 or status.offset < 0 or status.offset + status.byte_size > found.st_size:
        raise _refused(
            status,
            f"invalid args: offset {status.offset} and byte_size {status.byte_size} must be inside the "
            f"{found.st_size} bytes of '{status.key}'",
        )


def _refused(status: RegionStatus, why: str) -> InvalidArgument:
    return InvalidArgument(f"failed to register shared memory region '{status.name}': {why}")


# For servers and tests without shared memory.
NO_REGIONS: Final = SharedMemoryRegions(SharedMemoryOptions(), 0)


def cuda_unsupported(region: str) -> InvalidArgument:
    """Return Triton's error for CUDA shared memory in a build without GPUs."""
    return InvalidArgument(f"failed to register CUDA shared memory region: '{region}', GPUs not supported")
