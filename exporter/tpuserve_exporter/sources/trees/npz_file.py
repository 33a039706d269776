"""Trees in .npz files of NumPy: big_vision and the Vision Transformer, with the path as the name of each array."""

import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.trees.msgpack_index import find_dtype
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

SUFFIX = ".npz"
_ENTRY = ".npy"
# NumPy stores dtypes of other libraries as bytes without a name. big_vision reads two bytes as bfloat16.
_UNNAMED = {"V2": "bfloat16"}
_AGAIN = "Copy the file again, or export an earlier checkpoint"


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    from tpuserve_exporter.sources.trees.restore import open_tree

    return open_tree("npz", NpzTree(source), options)


def is_npz(file: Path) -> bool:
    """Return whether a file is an archive of arrays alone."""
    if not zipfile.is_zipfile(file):
        return file.suffix == SUFFIX
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    return bool(names) and all(name.endswith(_ENTRY) for name in names)


class NpzTree:
    """The arrays of a file. Slashes in a name separate the keys."""

    step: int | None = None

    def __init__(self, source: Path) -> None:
        """Read the header of each array. Raises SourceUnreadable."""
        self.name = source.name
        self._path = source
        self._names: dict[KeyPath, str] = {}
        arrays: dict[KeyPath, ArraySpec] = {}
        try:
            with zipfile.ZipFile(source) as archive:
                for entry in archive.infolist():
                    path = tuple(entry.filename.removesuffix(_ENTRY).split("/"))
                    with archive.open(entry) as file:
                        spec = _read_spec(file, entry)
                    if spec is not None:
                        arrays[path], self._names[path] = spec, entry.filename
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise SourceUnreadable(f"cannot read {self.name} as an .npz file: {reason_of(error)}. {_AGAIN}") from error
        if not arrays:
            raise SourceUnreadable(f"{self.name} contains no arrays of numbers")
        self.arrays: Mapping[KeyPath, ArraySpec] = arrays

    def read(self, paths: Collection[KeyPath]) -> dict[KeyPath, Array]:
        """Return the values of these arrays. Raises SourceUnreadable if the file is damaged."""
        values: dict[KeyPath, Array] = {}
        try:
            with zipfile.ZipFile(self._path) as archive:
                for path in paths:
                    with archive.open(self._names[path]) as file:
                        value = np.lib.format.read_array(file, allow_pickle=False)
                    values[path] = value.view(self.arrays[path].dtype) if value.dtype.kind == "V" else value
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise SourceUnreadable(f"cannot read {self.name}: {reason_of(error)}. {_AGAIN}") from error
        return values


def _read_spec(file: IO[bytes], entry: zipfile.ZipInfo) -> ArraySpec | None:
    """Read an array's header, or return None for texts and objects. Raises ValueError if the entry has another size."""
    version = np.lib.format.read_magic(file)
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    found = find_dtype(_UNNAMED.get(dtype.str.lstrip("|<>="), dtype.name))
    if found is None:
        return None
    if file.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize != entry.file_size:
        raise ValueError(f"{entry.filename} does not have the size of its shape, {list(shape)}")
    return ArraySpec(found.name, tuple(shape))
