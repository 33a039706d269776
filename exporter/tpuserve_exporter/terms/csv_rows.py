"""The rows of a CSV file with a header, batch by batch."""

import contextlib
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.terms.sample_files import ColumnsFile, SampleFile
from tpuserve_exporter.terms.signature import Array

_VECTOR: Final = re.compile(r"(?P<name>.+)\[(?P<index>\d+)\]")
# Characters of a cell that a message shows.
_LONGEST: Final = 40


@dataclass(frozen=True, slots=True)
class CsvRows:
    """The rows of a CSV file with a header. A column has integers, floats, or strings if any cell is neither.

    `texts` describes the first such cell of each column with strings.
    """

    path: Path
    kinds: Mapping[str, type] = field(default_factory=dict)
    total: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def scan(cls, path: Path) -> "CsvRows":
        """Read every row, because the last one may decide the dtype of a column."""
        total, texts = 0, dict[str, str]()
        with _open_csv(path) as (header, lines):
            kinds: dict[str, type] = dict.fromkeys(header, np.int64)
            for line in lines:
                for key, cell in zip(header, line, strict=True):
                    while kinds[key] is not bytes and not _fits(cell, kinds[key]):
                        kinds[key] = np.float64 if kinds[key] is np.int64 else bytes
                    if kinds[key] is bytes and key not in texts:
                        texts[key] = f"{f'the text {cell[:_LONGEST]!r}' if cell else 'an empty cell'} in row {total}"
                total += 1
        if not total:
            raise SamplesUnfit(f"{path.name} contains no rows below its header")
        return cls(path, kinds, total, texts)

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
                yield ColumnsFile(self.path.name, _join_vectors(arrays), self.texts)

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
