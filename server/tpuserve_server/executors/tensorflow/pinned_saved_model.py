"""A SavedModel whose graph is read once, so that a runtime loads exactly the bytes that were checked."""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from tensorflow.python.framework.errors_impl import OpError

from tpuserve_formats.messages.official import CallableOptions, ConfigProto, MetaGraphDef
from tpuserve_formats.varint import varint
from tpuserve_server.core.system.runtime_folder import runtime_folder
from tpuserve_server.core.terms.errors import InvalidArgument, file_error
from tpuserve_server.executors.tensorflow.saved_session import SavedSession

# Parses `saved_model.pbtxt` with the parser of TensorFlow's loader.
#
# Python's parser of text protos reads some texts in another way: "\X66" is 4 characters there, and "f" in C++.
# TensorFlow's operation DecodeProto parses texts in C++, without the interpreter's lock.

_TAG: Final = "text_parser"
_INT64, _STRING = 9, 7
# Fields of SavedModel: their numbers, types, and names (tensorflow/core/protobuf/saved_model.proto).
_SCHEMA_VERSION, _META_GRAPHS = 1, 2
_FIELDS: Final = (("saved_model_schema_version", _INT64), ("meta_graphs", _STRING))


def parse_text(text: bytes) -> bytes:
    """Return the serialized SavedModel of a text. Blocks.

    Raises:
        InvalidArgument: it is not a SavedModel. The message names the file.
    """
    with runtime_folder() as folder:
        (folder.path / "saved_model.pb").write_bytes(_serialize(1, [_parser().SerializeToString()]))
        session = SavedSession(folder.path, (_TAG,), ConfigProto())
    try:
        options = CallableOptions(feed=["text:0"], fetch=["parse:0", "parse:1", "parse:2"])
        sizes, version, meta_graphs = map(np.asarray, session.make_callable(options)((np.array([text], object),)))
    except OpError as error:
        raise InvalidArgument("saved_model.pbtxt is not a SavedModel") from error
    finally:
        session.close()
    # A field without values has one empty value, and the size 0.
    return _serialize(int(version.item()), meta_graphs[0, : sizes[0, 1]])


def _serialize(schema_version: int, meta_graphs: Iterable[bytes]) -> bytes:
    """Return a serialized SavedModel of its parts."""
    parts = [varint(_SCHEMA_VERSION << 3), varint(schema_version)]
    for one in meta_graphs:
        parts += [varint(_META_GRAPHS << 3 | 2), varint(len(one)), one]
    return b"".join(parts)


def _parser() -> MetaGraphDef:
    """Return a graph that parses a text into the fields of SavedModel. Messages in them stay serialized."""
    meta_graph = MetaGraphDef()
    meta_graph.meta_info_def.tags.append(_TAG)
    # The type is not in the declarations of the messages that this package uses.
    nodes: Any = meta_graph.graph_def.node
    text = nodes.add(name="text", op="Placeholder")
    text.attr["dtype"].type = _STRING
    parse = nodes.add(name="parse", op="DecodeProtoV2", input=["text"])
    parse.attr["message_type"].s = b"tensorflow.SavedModel"
    parse.attr["message_format"].s = b"text"
    parse.attr["field_names"].list.s.extend(name.encode() for name, _ in _FIELDS)
    parse.attr["output_types"].list.type.extend(dtype for _, dtype in _FIELDS)
    return meta_graph


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
            raise file_error("the server cannot make a private copy of it", error) from error

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
            raise file_error(f"{name} cannot be read", error) from error
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
