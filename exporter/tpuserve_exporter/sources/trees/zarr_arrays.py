"""Arrays in zarr directories (version 2), as T5X, PaxML, big_vision and old releases of Orbax and Flax write them."""

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.sources.trees.msgpack_index import find_dtype
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

ARRAY_FILE = ".zarray"
_AGAIN = "Copy the directory again, or export an earlier step"
# Missing chunks to name in a message.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """One directory with a description of its array and a file for each chunk."""

    path: Path
    spec: ArraySpec
    chunk_files: tuple[str, ...]

    @classmethod
    def open(cls, path: Path) -> "ZarrArray":
        """Read the description. Raises SourceUnreadable."""
        try:
            described = json.loads((path / ARRAY_FILE).read_bytes())
            shape, chunks = tuple(map(int, described["shape"])), tuple(map(int, described["chunks"]))
            dtype = find_dtype(str(described["dtype"]))
            # Without a fill value, the writer stores every chunk, also zeros.
            is_whole = described.get("fill_value") is None
            separator = str(described.get("dimension_separator", "."))
            counts = [math.ceil(size / chunk) for size, chunk in zip(shape, chunks, strict=True)]
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise SourceUnreadable(f"cannot read {path.name}/{ARRAY_FILE}: {reason_of(error)}. {_AGAIN}") from error
        if dtype is None:
            raise SourceUnreadable(f"{path.name} has the unknown dtype {described['dtype']!r}")
        grid = itertools.product(*map(range, counts)) if is_whole else ()
        names = (separator.join(map(str, place)) or "0" for place in grid)
        return cls(path, ArraySpec(dtype.name, shape), tuple(names))

    def read(self) -> Array:
        """Return the values. Raises SourceUnreadable if a chunk is missing, which zarr would read as zeros."""
        import tensorstore

        missing = [name for name in self.chunk_files if not (self.path / name).is_file()]
        if missing:
            named = ", ".join(missing[:_MOST_NAMED])
            raise SourceUnreadable(
                f"{self.path.name} lacks {len(missing)} of its {len(self.chunk_files)} file(s): {named}. {_AGAIN}"
            )
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(self.path.absolute())}}
        try:
            values: Array = tensorstore.open(spec, open=True, read=True).result().read().result()
        except (ValueError, OSError) as error:
            reason = reason_of(error).split(" [")[0]
            raise SourceUnreadable(f"cannot read {self.path.name}: {reason}. {_AGAIN}") from error
        return values


def find_arrays(directory: Path) -> list[Path]:
    """Return the subdirectories that are arrays."""
    return sorted(path for path in directory.iterdir() if (path / ARRAY_FILE).is_file())
