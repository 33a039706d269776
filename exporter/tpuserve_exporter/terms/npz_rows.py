"""The arrays of an .npz file: all rows at once, or batch by batch with one batch in memory."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.array_files import read_numpy
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.terms.sample_files import ArraysFile, SampleFile
from tpuserve_exporter.terms.signature import Array

NUMPY: Final = b"\x93NUMPY"


def load_arrays(path: Path) -> dict[str, Array]:
    """Read every array by name. Raises SamplesUnfit."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file) and not _is_bare_array(file):
                raise SamplesUnfit(f"cannot read {path.name} as an .npz file: it is truncated or has another format")
            file.seek(0)
            arrays = read_numpy(file)
    except (OSError, ValueError) as error:
        raise SamplesUnfit(f"cannot read {path.name} as an .npz file: {error}") from error
    if arrays.keys() == {""}:
        raise _without_name(path)
    return arrays


def _without_name(path: Path) -> SamplesUnfit:
    return SamplesUnfit(
        f"{path.name} is one array without a name. Save it under the input's name with np.savez(file, NAME=array)"
    )


def _is_bare_array(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(len(NUMPY)) == NUMPY


_Header = tuple[tuple[int, ...], bool, "np.dtype[np.generic]"]
# Errors of a truncated or damaged archive, and of an array header that numpy refuses.
_DAMAGED = (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class NpzRows:
    """The arrays of an .npz file, by their headers. `batches` holds one batch in memory."""

    path: Path
    headers: Mapping[str, _Header]

    @classmethod
    def scan(cls, path: Path) -> "NpzRows":
        """Read the headers only. Raises SamplesUnfit."""
        with path.open("rb") as file:
            if _is_bare_array(file):
                raise _without_name(path)
        try:
            with zipfile.ZipFile(path) as archive:
                headers = {}
                for name in archive.namelist():
                    with archive.open(name) as member:
                        headers[name.removesuffix(".npy")] = _read_header(member)
        except _DAMAGED as error:
            raise SamplesUnfit(f"cannot read {path.name} as an .npz file: {_reason(error)}") from error
        return cls(path, headers)

    @property
    def keys(self) -> Sequence[str]:
        return tuple(self.headers)

    def count(self, keys: Iterable[str]) -> int:
        shapes = {key: self.headers[key][0] for key in keys}
        for key in shapes:
            if self.headers[key][2].hasobject:
                raise SamplesUnfit(
                    f"array {key} of {self.path.name} has Python objects. Save strings as np.array(strings, np.bytes_)"
                )
        counts = {key: shape[0] if shape else None for key, shape in shapes.items()}
        [first, *others] = dict.fromkeys(counts.values())
        if others or not first:
            listed = ", ".join(f"{key} {list(shape)}" for key, shape in shapes.items())
            raise SamplesUnfit(
                f"inputs and labels need the same number of rows, and at least one. The shapes in "
                f"{self.path.name}: {listed}"
            )
        return first

    def batches(self, keys: Iterable[str], rows: int, pad_values: Mapping[str, PadValue]) -> Iterator[SampleFile]:
        keys = tuple(keys)
        left = self.count(keys)
        try:
            with zipfile.ZipFile(self.path) as archive, contextlib.ExitStack() as opened:
                readers = {
                    key: _RowReader(opened.enter_context(archive.open(self._member(archive, key)))) for key in keys
                }
                while left:
                    size = min(rows, left)
                    yield ArraysFile(self.path.name, {key: reader.take(size) for key, reader in readers.items()})
                    left -= size
        except _DAMAGED as error:
            raise SamplesUnfit(f"cannot read {self.path.name}: {_reason(error)}") from error

    def _member(self, archive: zipfile.ZipFile, key: str) -> str:
        return f"{key}.npy" if f"{key}.npy" in archive.namelist() else key


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _read_header(member: IO[bytes]) -> _Header:
    """Read the header of an .npy file. Raises ValueError."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(member)
    return tuple(shape), bool(fortran_order), dtype


class _RowReader:
    """Reads the rows of an .npy file in order. Reads an array in Fortran's order as a whole."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member
        self._shape, fortran_order, self._dtype = _read_header(member)
        self._whole = self._read(self._shape, order="F") if fortran_order else None
        self._taken = 0

    def take(self, rows: int) -> Array:
        start, self._taken = self._taken, self._taken + rows
        if self._whole is not None:
            return self._whole[start : self._taken]
        return self._read((rows, *self._shape[1:]), order="C")

    def _read(self, shape: tuple[int, ...], order: str) -> Array:
        wanted = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        content = self._member.read(wanted)
        if len(content) < wanted:
            raise ValueError("it is truncated")
        if not wanted:
            return np.zeros(shape, self._dtype)
        return np.frombuffer(content, self._dtype).reshape(shape, order="F" if order == "F" else "C")
