"""A SavedModel whose graph is read once, so that a runtime loads exactly the bytes that were checked."""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.runtime_folder import runtime_folder
from tpuserve_server.executors.tensorflow.text_parser import parse_text

_BINARY, _TEXT = "saved_model.pb", "saved_model.pbtxt"
# A graph in pieces, of TensorFlow's proto_splitter. TensorFlow may prefer it to the files that this module reads.
_PIECES = "saved_model.cpb"
# protobuf's limit of a message.
_MAX_BYTES: Final = 2**31 - 1
# The text and all of its parsed parts are in memory at the same time.
_MAX_TEXT_BYTES: Final = 2**26
# Bytes of one read.
_READ_BYTES: Final = 2**20
_VARIABLES, _ASSETS = "variables", "assets"


class PinnedSavedModel:
    """A private, immutable copy of a version's graph, for one load. Not thread-safe.

    A runtime loads from `path`: a directory with the copy and links to the version's variables and assets. `graph` is
    the content of the copy; empty if the version has no graph, which the runtime reports.
    """

    def __init__(self, version: Path) -> None:
        """Copy the graph. TensorFlow's own parser reads a text. Blocks.

        Raises:
            InvalidArgument: the file cannot be read, or is too large or not a SavedModel. The message has no path.
            FailedPrecondition: the system refuses a private directory.
        """
        try:
            self._make(version)
        except OSError as error:
            raise FailedPrecondition(f"the server cannot make a private copy of it: {error.strerror}") from error

    def _make(self, version: Path) -> None:
        self.graph = memoryview(b"")
        with contextlib.ExitStack() as resources:
            self.path = resources.enter_context(runtime_folder()).path
            for name in (_VARIABLES, _ASSETS):
                (self.path / name).symlink_to((version / name).absolute())
            self._copy = resources.enter_context(_create_file(self.path / _BINARY))
            if _copy_graph(version, self._copy):
                _seal(self._copy)
                self.graph = _map(self._copy)
            else:
                (self.path / _BINARY).unlink()
            self._resources = resources.pop_all()

    def release_graph(self) -> None:
        """Release the graph, which the runtime has loaded. The directory stays for assets, which it may read later."""
        self.graph = memoryview(b"")
        self._copy.close()
        if not _has_files(self.path / _ASSETS):
            self.close()

    def close(self) -> None:
        """Release the graph, and remove the directory. Idempotent."""
        self.graph = memoryview(b"")
        self._resources.close()


def _create_file(path: Path) -> FileIO:
    """Create an empty file for writing: in memory, with `path` as a link to it, if the system can make such files.

    A temporary directory may be too small for a graph. The link is valid while this process has the file open.
    """
    if not hasattr(os, "memfd_create"):
        return path.open("w+b", buffering=0)
    file = FileIO(os.memfd_create(_BINARY, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    path.symlink_to(f"/proc/self/fd/{file.fileno()}")
    return file


def _copy_graph(version: Path, copy: FileIO) -> bool:
    """Write the serialized SavedModel of a version. Return whether the version has one."""
    if (version / _PIECES).exists():
        raise InvalidArgument(f"this server cannot check {_PIECES}. Save the model as {_BINARY}")
    for name, max_bytes in ((_BINARY, _MAX_BYTES), (_TEXT, _MAX_TEXT_BYTES)):
        try:
            with (version / name).open("rb", buffering=0) as file:
                content = _read(file, name, max_bytes)
                for piece in [parse_text(b"".join(content))] if name == _TEXT else content:
                    _write(piece, copy)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InvalidArgument(f"{name} cannot be read: {error.strerror}") from error
        return True
    return False


def _read(file: FileIO, name: str, max_bytes: int) -> Iterator[bytes]:
    """Yield the content in pieces, at most its size now: a file that grows meanwhile is damaged."""
    rest = os.fstat(file.fileno()).st_size
    if rest > max_bytes:
        raise InvalidArgument(f"{name} has {rest} bytes; the limit is {max_bytes}")
    while rest and (piece := file.read(min(rest, _READ_BYTES))):
        rest -= len(piece)
        yield piece


def _write(content: bytes, file: FileIO) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _seal(file: FileIO) -> None:
    if hasattr(os, "memfd_create"):
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, seals)


def _map(file: FileIO) -> memoryview:
    """Return the content without another copy."""
    size_bytes = os.fstat(file.fileno()).st_size
    # Before Linux 6.7, a sealed file cannot be mapped as shared.
    mapped = mmap.mmap(file.fileno(), size_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ) if size_bytes else b""
    return memoryview(mapped)


def _has_files(folder: Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(folder) as files:
        return any(files)
    return False
