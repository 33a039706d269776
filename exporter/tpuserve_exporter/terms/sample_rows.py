"""Reads .npz, TFRecord and CSV files of samples: the rows for the checks at once, or all rows batch by batch."""

import contextlib
import csv
import itertools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.array_files import read_numpy
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.terms.sample_files import ArraysFile, ColumnsFile, RecordsFile, SampleFile
from tpuserve_exporter.terms.signature import Array

# The most rows for the checks of a TFRecord or CSV file, which may be a whole data set.
MOST_RECORDS: Final = 1000
_GZIP: Final = b"\x1f\x8b"
_NUMPY: Final = b"\x93NUMPY"


class SampleRows(Protocol):
    """All rows of a file. `keys` are the names of its arrays, features or columns."""

    @property
    def keys(self) -> Sequence[str]: ...

    def count(self, keys: Iterable[str]) -> int:
        """Return the number of rows. Raises SamplesUnfit if the named arrays differ in it, or have none."""
        ...

    def batches(self, keys: Iterable[str], rows: int, pad_values: Mapping[str, PadValue]) -> Iterator[SampleFile]:
        """Read the file from its start, `rows` rows at a time, of which the last batch may have fewer.

        An .npz file yields the named arrays. Raises SamplesUnfit.
        """
        ...


def open_samples(path: Path, pad_values: Mapping[str, PadValue]) -> SampleFile:
    """Read an .npz file, or the first 1000 rows of a TFRecord or CSV file. Raises SamplesUnfit.

    Sequences of a TFRecord are padded to the longest one with `pad_values` by input, or with 0.
    """
    kind = _detect(path)
    if kind == "npz":
        return ArraysFile(path.name, _load_arrays(path))
    rows = _RecordRows(path, kind) if kind in ("", "GZIP") else CsvRows.scan(path)
    try:
        return next(rows.batches((), MOST_RECORDS, pad_values))
    except StopIteration:
        raise SamplesUnfit(f"{path.name} contains no {'records' if kind in ('', 'GZIP') else 'rows'}") from None


def scan_samples(path: Path) -> SampleRows:
    """Read the names and the number of rows. Reads a TFRecord or CSV file to its end. Raises SamplesUnfit."""
    kind = _detect(path)
    if kind == "npz":
        return ArrayRows.scan(path)
    return CsvRows.scan(path) if kind == "csv" else _RecordRows.scan(path, kind)


def _detect(path: Path) -> str:
    """Return `npz`, `csv`, or the compression of a TFRecord. The file's suffix or content decides."""
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise SamplesUnfit(f"cannot read {path.name}: {error.strerror}") from error
    if path.suffix == ".npz" or start.startswith((b"PK", _NUMPY)):
        return "npz"
    if path.suffix.lower() == ".csv":
        return "csv"
    return "GZIP" if start.startswith(_GZIP) else ""


def _load_arrays(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file) and not _is_bare_array(file):
                raise _not_npz(path)
            file.seek(0)
            arrays = read_numpy(file)
    except (OSError, ValueError) as error:
        raise SamplesUnfit(f"cannot read {path.name} as an .npz file: {error}") from error
    if arrays.keys() == {""}:
        raise _without_name(path)
    return arrays


def _not_npz(path: Path) -> SamplesUnfit:
    return SamplesUnfit(f"cannot read {path.name} as an .npz file: it is truncated or has another format")


def _without_name(path: Path) -> SamplesUnfit:
    return SamplesUnfit(
        f"{path.name} is one array without a name. Save it under the input's name with np.savez(file, NAME=array)"
    )


def _is_bare_array(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(len(_NUMPY)) == _NUMPY


_Header = tuple[tuple[int, ...], bool, "np.dtype[np.generic]"]
# Errors of a truncated or damaged archive, and of an array header that numpy refuses.
_DAMAGED = (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """The arrays of an .npz file, by their headers. `batches` holds one batch in memory."""

    path: Path
    headers: Mapping[str, _Header]

    @classmethod
    def scan(cls, path: Path) -> "ArrayRows":
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


@dataclass(frozen=True, slots=True)
class _RecordRows:
    """The tf.Examples of a TFRecord file."""

    path: Path
    compression: str
    keys: Sequence[str] = ()
    total: int = 0

    @classmethod
    def scan(cls, path: Path, compression: str) -> "_RecordRows":
        """Read every record, so that damage ends the export before it takes minutes. The first one has the names."""
        file = cls(path, compression)
        records = file._records()
        first = next(records, None)
        if first is None:
            raise SamplesUnfit(f"{path.name} contains no records")
        return cls(path, compression, RecordsFile(path.name, [first], {}).keys, 1 + sum(1 for _ in records))

    def count(self, keys: Iterable[str]) -> int:
        return self.total

    def batches(self, keys: Iterable[str], rows: int, pad_values: Mapping[str, PadValue]) -> Iterator[SampleFile]:
        records, first = self._records(), 0
        while batch := list(itertools.islice(records, rows)):
            yield RecordsFile(self.path.name, batch, pad_values, first)
            first += len(batch)

    def _records(self) -> Iterator[bytes]:
        import tensorflow as tf

        read = 0
        try:
            for record in tf.data.TFRecordDataset(str(self.path), self.compression).as_numpy_iterator():
                yield record
                read += 1
        except tf.errors.OpError as error:
            found = f"damaged after {read} record(s)" if read else "neither .npz, .csv nor TFRecord"
            raise SamplesUnfit(f"cannot read {self.path.name}: it is {found}") from error


_VECTOR: Final = re.compile(r"(?P<name>.+)\[(?P<index>\d+)\]")
_KINDS: Final = (np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class CsvRows:
    """The rows of a CSV file with a header. A column has integers, floats, or strings if any cell is neither."""

    path: Path
    kinds: Mapping[str, type] = field(default_factory=dict)
    total: int = 0

    @classmethod
    def scan(cls, path: Path) -> "CsvRows":
        """Read every row, because the last one may decide the dtype of a column."""
        total = 0
        with _open_csv(path) as (header, lines):
            kinds: dict[str, type] = dict.fromkeys(header, np.int64)
            for line in lines:
                total += 1
                for key, cell in zip(header, line, strict=True):
                    while kinds[key] is not bytes and not _fits(cell, kinds[key]):
                        kinds[key] = np.float64 if kinds[key] is np.int64 else bytes
        if not total:
            raise SamplesUnfit(f"{path.name} contains no rows below its header")
        return cls(path, kinds, total)

    @property
    def keys(self) -> Sequence[str]:
        return tuple(_join_vectors({key: np.zeros(1) for key in self.kinds}))

    def count(self, keys: Iterable[str]) -> int:
        return self.total

    def batches(self, keys: Iterable[str], rows: int, pad_values: Mapping[str, PadValue]) -> Iterator[SampleFile]:
        with _open_csv(self.path) as (header, lines):
            while batch := list(itertools.islice(lines, rows)):
                columns = dict(zip(header, zip(*batch, strict=True), strict=True))
                arrays = {key: self._convert(key, cells) for key, cells in columns.items()}
                yield ColumnsFile(self.path.name, _join_vectors(arrays))

    def _convert(self, key: str, cells: Sequence[str]) -> Array:
        kind = self.kinds[key]
        if kind is bytes:
            return np.array([cell.encode() for cell in cells], np.bytes_)
        return np.array([kind(cell) for cell in cells])


def _fits(cell: str, kind: type) -> bool:
    try:
        int(cell) if kind is np.int64 else float(cell)
    except ValueError:
        return False
    return "_" not in cell and (kind is not np.int64 or abs(int(cell)) < 2**63)


@contextlib.contextmanager
def _open_csv(path: Path) -> Iterator[tuple[Sequence[str], Iterator[list[str]]]]:
    """Open the file for the body, as its header and its rows without empty lines. Raises SamplesUnfit."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = [name.strip() for name in next(lines, [])]
            repeated = [name for name, count in Counter(header).items() if count > 1]
            if not header or "" in header or repeated:
                found = f"the name {repeated[0]!r} twice" if repeated else "a column without a name"
                raise SamplesUnfit(f"the first line of {path.name} has {found}. It must name each column once")
            yield header, _check_widths(path, len(header), lines)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SamplesUnfit(f"cannot read {path.name} as CSV: {error}") from error


def _check_widths(path: Path, width: int, lines: Iterator[list[str]]) -> Iterator[list[str]]:
    for number, line in enumerate(lines, start=2):
        if line and len(line) != width:
            raise SamplesUnfit(
                f"line {number} of {path.name} has {len(line)} values, but the header names {width} columns"
            )
        if line:
            yield [cell.strip() for cell in line]


def _join_vectors(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Join `x[0]`, `x[1]`, … to one array `x`, at the place of the first."""
    joined: dict[str, Array] = {}
    for key, value in arrays.items():
        match = _VECTOR.fullmatch(key)
        if match is None:
            joined[key] = value
        elif (name := match["name"]) not in joined:
            size = sum(1 for one in arrays if (other := _VECTOR.fullmatch(one)) and other["name"] == name)
            parts = [f"{name}[{index}]" for index in range(size)]
            if missing := [part for part in parts if part not in arrays]:
                raise SamplesUnfit(f"the CSV file has {size} columns {name}[…], but no {missing[0]}")
            joined[name] = np.stack([arrays[part] for part in parts], axis=1)
    return joined
