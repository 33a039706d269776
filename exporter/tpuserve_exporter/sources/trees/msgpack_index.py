"""Reads the index of a file that `flax.serialization` wrote: where each array lies, without its values.

Flax packs a tree into MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md). An array is an extension of
type 1 with (shape, name of the dtype, bytes), and an array of more than 1 GiB is a map of flat chunks. This module
reads headers from a mapped file and checks every size against the file, so that a damaged file cannot allocate memory.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

_NDARRAY, _COMPLEX, _NUMPY_SCALAR = 1, 2, 3
_CHUNKED = "__msgpack_chunked_array__"
# Deeper trees than any model has. The limit keeps the recursion below Python's.
_DEEPEST = 200
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
# First bytes of items with a length: the kind, and the format of the length.
_SIZED = {
    0xC4: ("bin", ">B"), 0xC5: ("bin", ">H"), 0xC6: ("bin", ">I"),
    0xC7: ("ext", ">B"), 0xC8: ("ext", ">H"), 0xC9: ("ext", ">I"),
    0xD9: ("str", ">B"), 0xDA: ("str", ">H"), 0xDB: ("str", ">I"),
    0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class Damaged(ValueError):
    """Raised for a file that is not whole, with what is wrong and where."""


@dataclass(frozen=True, slots=True)
class MsgpackArray:
    """An array of a file. Its values are the bytes of `parts` (start and size), one after the other."""

    spec: ArraySpec
    parts: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class MsgpackIndex:
    """The leaves of a file's tree: arrays, Python numbers and texts."""

    arrays: dict[KeyPath, MsgpackArray] = field(default_factory=dict)
    numbers: dict[KeyPath, complex] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)


class MsgpackFile:
    """A mapped file with the index of its tree."""

    def __init__(self, path: Path) -> None:
        """Read the index. Raises Damaged, or OSError."""
        with path.open("rb") as file:
            try:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise Damaged("it is empty") from error
        self.index = MsgpackIndex()
        walk = _Walk(self._bytes, self.index)
        walk.read_value((), 0)
        if walk.position != len(self._bytes):
            raise Damaged(f"{len(self._bytes) - walk.position} byte(s) follow the tree")
        _join_chunks(self.index)

    def read(self, path: KeyPath) -> Array:
        """Return an array, which shares the mapped memory unless it has several parts."""
        found = self.index.arrays[path]
        dtype = np.dtype(found.spec.dtype)
        flat = [np.frombuffer(self._bytes, dtype, size // dtype.itemsize, start) for start, size in found.parts]
        return (flat[0] if len(flat) == 1 else np.concatenate(flat)).reshape(found.spec.shape)


def looks_like_msgpack(path: Path) -> bool:
    """Return whether a file begins with a map whose first key is a name, as the files of Flax do."""
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except OSError:
        return False
    walk = _Walk(head, MsgpackIndex())
    try:
        kind, count = walk.read_header()
        if kind != "map" or not count:
            return False
        kind, size = walk.read_header()
        key = head[walk.position : walk.position + size].decode()
        return kind == "str" and bool(key) and key.isprintable()
    except (Damaged, UnicodeDecodeError):
        return False


class _Walk:
    """A pass over the items of a file, which adds its leaves to `index`."""

    def __init__(self, content: "mmap.mmap | bytes", index: MsgpackIndex) -> None:
        self._content = content
        self._index = index
        self.position = 0

    def read_header(self) -> tuple[str, Any]:
        """Read an item's first bytes. Return its kind, with its length, or with its value for `number` and `nil`."""
        first = self._take(1)[0]
        if first <= 0x7F or first >= 0xE0:
            return "number", first if first <= 0x7F else first - 0x100
        for least, most, kind in ((0x80, 0x8F, "map"), (0x90, 0x9F, "array"), (0xA0, 0xBF, "str")):
            if least <= first <= most:
                return kind, first - least
        if first in _SIZED:
            kind, form = _SIZED[first]
            return kind, self._unpack(form)
        if first in _NUMBERS:
            return "number", self._unpack(_NUMBERS[first])
        if first in _FIXED_EXTENSIONS:
            return "ext", _FIXED_EXTENSIONS[first]
        if first in _CONSTANTS:
            value = _CONSTANTS[first]
            return ("nil", None) if value is None else ("number", value)
        raise Damaged(f"byte {self.position - 1} is not an item of MessagePack")

    def read_value(self, path: KeyPath, depth: int) -> None:
        if depth > _DEEPEST:
            raise Damaged(f"it is nested deeper than {_DEEPEST} levels")
        kind, value = self.read_header()
        if kind == "map":
            for _ in range(value):
                self.read_value((*path, self._read_key()), depth + 1)
        elif kind == "array":
            for index in range(value):
                self.read_value((*path, str(index)), depth + 1)
        elif kind == "number":
            self._index.numbers[path] = value
        elif kind == "str":
            self._index.texts[path] = self._take(value).decode("utf-8", "replace")
        elif kind == "bin":
            self._skip(value)
        elif kind == "ext":
            self._read_extension(path, value)

    def _read_key(self) -> str:
        kind, value = self.read_header()
        if kind == "number":
            return str(value)
        if kind not in ("str", "bin"):
            raise Damaged(f"a key at byte {self.position} is a {kind}")
        return self._take(value).decode("utf-8", "backslashreplace")

    def _read_extension(self, path: KeyPath, size: int) -> None:
        (code,) = struct.unpack(">b", self._take(1))
        end = self.position + size
        self._check_end(end)
        if code in (_NDARRAY, _NUMPY_SCALAR):
            self._index.arrays[path] = self._read_array()
        elif code == _COMPLEX:
            parts = self._read_numbers()
            if len(parts) != 2:
                raise Damaged(f"the number that ends at byte {self.position} has {len(parts)} parts")
            self._index.numbers[path] = complex(*parts)
        else:
            raise Damaged(f"byte {self.position} begins an extension of type {code}, which Flax does not write")
        if self.position != end:
            raise Damaged(f"the array at byte {self.position} does not end where it should")

    def _read_array(self) -> MsgpackArray:
        kind, count = self.read_header()
        if (kind, count) != ("array", 3):
            raise Damaged(f"byte {self.position} begins no array")
        shape = tuple(self._read_numbers())
        name = self._take(self._read_size()).decode("utf-8", "replace")
        size = self._read_size()
        start = self.position
        self._skip(size)
        dtype = find_dtype(name)
        if dtype is None or not all(isinstance(one, int) and one >= 0 for one in shape):
            raise Damaged(f"an array at byte {start} has the shape {list(shape)} and the unknown dtype {name!r}")
        if math.prod(shape) * dtype.itemsize != size:
            raise Damaged(f"an array at byte {start} is {name}{list(shape)}, but has {size} byte(s)")
        return MsgpackArray(ArraySpec(dtype.name, shape), ((start, size),))

    def _read_size(self) -> int:
        kind, size = self.read_header()
        if kind not in ("str", "bin"):
            raise Damaged(f"byte {self.position} begins no text or bytes")
        return int(size)

    def _read_numbers(self) -> list[Any]:
        kind, count = self.read_header()
        if kind != "array":
            raise Damaged(f"byte {self.position} begins no list of numbers")
        numbers = [self.read_header() for _ in range(count)]
        if any(kind != "number" for kind, _ in numbers):
            raise Damaged(f"the list that ends at byte {self.position} has other items than numbers")
        return [number for _, number in numbers]

    def _unpack(self, form: str) -> Any:  # noqa: ANN401 - a number
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, size: int) -> bytes:
        start = self.position
        self._skip(size)
        return bytes(self._content[start : self.position])

    def _skip(self, size: int) -> None:
        self._check_end(self.position + size)
        self.position += size

    def _check_end(self, end: int) -> None:
        if end > len(self._content):
            raise Damaged(f"it ends at byte {len(self._content)}, but an item needs {end} bytes")


def find_dtype(name: str) -> "np.dtype[Any] | None":
    """Return the dtype of numbers with a name of numpy or ml_dtypes, or None."""
    import ml_dtypes  # noqa: F401 - makes its dtypes known to numpy by name

    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    is_number = dtype.kind in "biufc" or (dtype.kind == "V" and dtype.names is None and not name.startswith("void"))
    return dtype if is_number and dtype.subdtype is None else None


def _join_chunks(index: MsgpackIndex) -> None:
    """Replace every map of chunks by one array. Raises Damaged if its chunks do not have the size of its shape."""
    for marker in [path for path in index.numbers if path[-1:] == (_CHUNKED,)]:
        root = marker[:-1]
        shape = tuple(one for one in _in_order(index.numbers, (*root, "shape")) if isinstance(one, int))
        chunks = list(_in_order(index.arrays, (*root, "chunks")))
        parts = tuple(part for chunk in chunks for part in chunk.parts)
        if not chunks or math.prod(shape) != sum(math.prod(chunk.spec.shape) for chunk in chunks):
            raise Damaged(f"the chunks of {'/'.join(root)} do not have the size of its shape, {list(shape)}")
        for leaves in (index.numbers, index.arrays):
            for path in [path for path in leaves if path[: len(root)] == root]:
                del leaves[path]
        index.arrays[root] = MsgpackArray(ArraySpec(chunks[0].spec.dtype, shape), parts)


def _in_order(leaves: Mapping[KeyPath, Any], root: KeyPath) -> Iterator[Any]:
    count = 0
    while (path := (*root, str(count))) in leaves:
        yield leaves[path]
        count += 1
