"""Reads .npz, TFRecord and CSV files of samples: the rows for the checks at once, or all rows batch by batch."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.terms.csv_rows import CsvRows
from tpuserve_exporter.terms.npz_rows import NUMPY, NpzRows, load_arrays
from tpuserve_exporter.terms.sample_files import ArraysFile, RecordsFile, SampleFile

# The most rows for the checks of a TFRecord or CSV file, which may be a whole data set.
MOST_RECORDS: Final = 1000
_GZIP: Final = b"\x1f\x8b"


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
        return ArraysFile(path.name, load_arrays(path))
    rows = _RecordRows(path, kind) if kind in ("", "GZIP") else CsvRows.scan(path)
    try:
        return next(rows.batches((), MOST_RECORDS, pad_values))
    except StopIteration:
        raise SamplesUnfit(f"{path.name} contains no {'records' if kind in ('', 'GZIP') else 'rows'}") from None


def scan_samples(path: Path) -> SampleRows:
    """Read the names and the number of rows. Reads a TFRecord or CSV file to its end. Raises SamplesUnfit."""
    kind = _detect(path)
    if kind == "npz":
        return NpzRows.scan(path)
    return CsvRows.scan(path) if kind == "csv" else _RecordRows.scan(path, kind)


def _detect(path: Path) -> str:
    """Return `npz`, `csv`, or the compression of a TFRecord. The file's suffix or content decides."""
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise SamplesUnfit(f"cannot read {path.name}: {error.strerror}") from error
    if path.suffix == ".npz" or start.startswith((b"PK", NUMPY)):
        return "npz"
    if path.suffix.lower() == ".csv":
        return "csv"
    return "GZIP" if start.startswith(_GZIP) else ""


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
