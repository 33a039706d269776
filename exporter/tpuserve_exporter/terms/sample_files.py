"""The user's samples: rows of an .npz, TFRecord or CSV file, which sample_rows reads."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

if TYPE_CHECKING:
    from tensorflow.core.example.example_pb2 import Example
    from tensorflow.core.example.feature_pb2 import Feature


class SampleFile(Protocol):
    """Rows of samples for any signature."""

    @property
    def keys(self) -> Sequence[str]:
        """Names of the arrays, features or columns."""
        ...

    def without(self, keys: Iterable[str]) -> "SampleFile":
        """Return the same rows without some names."""
        ...

    def find(self, name: str, signature: Signature) -> Array:
        """Return rows for one input. Raises SamplesUnfit, with a list of the file's content, if it has none."""
        ...

    def as_examples(self, signature: Signature) -> Array | None:
        """Return the rows as serialized tf.Examples, or None if the file's content cannot be split into rows."""
        ...


@dataclass(frozen=True, slots=True)
class ArraysFile:
    """Arrays of the file `name`, by `INPUT` or `SIGNATURE/INPUT`."""

    name: str
    arrays: Mapping[str, Array]

    @property
    def keys(self) -> Sequence[str]:
        return tuple(self.arrays)

    def without(self, keys: Iterable[str]) -> "ArraysFile":
        apart = set(keys)
        return replace(self, arrays={key: value for key, value in self.arrays.items() if key not in apart})

    def find(self, name: str, signature: Signature) -> Array:
        for key in (f"{signature.name}/{name}", name):
            if key in self.arrays:
                return self.arrays[key]
        available = ", ".join(sorted(self.arrays)) or "nothing"
        raise SamplesUnfit(f"{self.name} has no array for input {name!r} of {signature.name}. It has {available}")

    def as_examples(self, signature: Signature) -> Array | None:
        """Return tf.Examples with a feature for each array, or None if the arrays differ in their rows."""
        prefix = f"{signature.name}/"
        arrays = {name.removeprefix(prefix): value for name, value in self.arrays.items()}
        counts = {len(value) if value.ndim else 0 for value in arrays.values()}
        if len(counts) != 1 or any(value.dtype.kind not in "fiubSU" for value in arrays.values()):
            return None
        rows = [_encode({name: value[row] for name, value in arrays.items()}) for row in range(counts.pop())]
        return np.array(rows, object)


def _encode(row: Tensors) -> bytes:
    from tensorflow.core.example.example_pb2 import Example

    example = Example()
    for name, value in row.items():
        feature, flat = example.features.feature[name], np.ravel(value)
        if value.dtype.kind == "f":
            feature.float_list.value.extend(flat.astype(np.float32))
        elif value.dtype.kind in "SU":
            texts = np.char.encode(flat) if value.dtype.kind == "U" else flat
            feature.bytes_list.value.extend(texts.tolist())
        else:
            feature.int64_list.value.extend(flat.astype(np.int64))
    return bytes(example.SerializeToString())


@dataclass(frozen=True, slots=True)
class ColumnsFile(ArraysFile):
    """Columns of a CSV file. A vector is `INPUT[0]`, `INPUT[1]`, … or every column that is no other input.

    `texts` describes a cell that is no number, by column.
    """

    texts: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str, signature: Signature) -> Array:
        spec = signature.inputs[name]
        inner = (spec.shape or (None,))[1:]
        found = self.arrays.get(name)
        own = [key for key in self.texts if key == name or key.startswith(f"{name}[")]
        if found is None:
            found = self._join(name, signature, inner)
            own = [key for key in self.texts if key in self.arrays and key not in signature.inputs]
        if own and spec.dtype not in ("", "string"):  # labels have no dtype
            found_text = f"column {own[0]!r} of {self.name} has {self.texts[own[0]]}"
            raise SamplesUnfit(f"{found_text}, but input {name!r} is {spec}")
        size = _size(inner)
        return found.reshape(len(found), *map(int, inner)) if found[:1].size == size else found  # type: ignore[arg-type]

    def _join(self, name: str, signature: Signature, inner: Sequence[int | None]) -> Array:
        rest = [key for key in self.arrays if key not in signature.inputs]
        size = _size(inner)
        if len(rest) == size:
            return np.stack([self.arrays[key] for key in rest], axis=1)
        takes = f"{signature.inputs[name]} takes {size or 'any number of'} value(s) of a row"
        raise SamplesUnfit(
            f"{self.name} has no column {name!r} for {signature.name}, whose {takes}. The {len(rest)} other column(s) "
            f"are {_shorten(rest)}. Name columns {name}, or {name}[0], {name}[1], …, or remove those that are no input"
        )


def _size(inner: Sequence[int | None]) -> int | None:
    """Return the values of a row, or None if a dimension is free."""
    return None if None in inner else math.prod(size for size in inner if size is not None)


_MOST_NAMED = 12


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (", ".join(names[:_MOST_NAMED]) or "none") + more


class RecordsFile:
    """tf.Examples of a TFRecord file, from record number `first`. They have a feature for each input, or are the input
    itself.

    Sequences are padded to the longest one with `pad_values` by name, or with 0.
    """

    def __init__(self, name: str, records: Sequence[bytes], pad_values: Mapping[str, PadValue], first: int = 0) -> None:
        """Parse the records. Raises SamplesUnfit."""
        self._name = name
        self._pad_values = pad_values
        self._records = records
        self._first = first
        self._apart: frozenset[str] = frozenset()
        self._examples = [_parse(record, index, name) for index, record in enumerate(records, start=first)]

    @property
    def keys(self) -> Sequence[str]:
        found = {key for example in self._examples for key in example.features.feature}
        return tuple(sorted(found - self._apart))

    def without(self, keys: Iterable[str]) -> "RecordsFile":
        """Return the same rows. Their `as_examples` keeps the whole records, as a server receives them."""
        other = copy.copy(self)
        other._apart = frozenset(keys)
        return other

    def find(self, name: str, signature: Signature) -> Array:
        features = [self._find(name, index) for index in range(len(self._examples))]
        lists = [getattr(feature, feature.WhichOneof("kind") or "float_list").value for feature in features]
        return _stack(name, signature.inputs[name], lists, self._pad_values.get(name))

    def as_examples(self, signature: Signature) -> Array | None:
        return np.array(self._records, object)

    def _find(self, name: str, index: int) -> "Feature":
        features = self._examples[index].features.feature
        if name not in features or name in self._apart:
            available = ", ".join(sorted(features)) or "nothing"
            raise SamplesUnfit(
                f"record {self._first + index} of {self._name} has no feature {name!r}. It has {available}"
            )
        return features[name]


def _parse(record: bytes, index: int, name: str) -> "Example":
    from google.protobuf.message import DecodeError
    from tensorflow.core.example.example_pb2 import Example

    try:
        return Example.FromString(record)
    except DecodeError as error:
        raise SamplesUnfit(f"record {index} of {name} is not a tf.Example: {reason_of(error)}") from error


def _stack(name: str, spec: TensorSpec, lists: Sequence[Sequence[object]], pad_value: PadValue | None) -> Array:
    """Stack lists to rows with the spec's shape. If its second dimension is free, pad rows to the longest one."""
    dims = spec.shape or (None,)
    inner = int(np.prod([size or 1 for size in dims[2:]]))
    longest = max(len(values) for values in lists)
    shape = tuple(-1 if size is None else size for size in dims[1:])
    dtype = object if spec.dtype == "string" else None
    padding = pad_value if pad_value is not None else "" if spec.dtype == "string" else 0
    if isinstance(padding, str):
        padding = padding.encode()  # type: ignore[assignment]  # strings are bytes from here on
    is_sequence = len(dims) > 1 and dims[1] is None
    if is_sequence and longest % inner == 0:
        lists = [[*values, *([padding] * (longest - len(values)))] for values in lists]
    try:
        return np.stack([np.array(values, dtype).reshape(shape) for values in lists])
    except ValueError as error:
        sizes = ", ".join(map(str, sorted({len(values) for values in lists})))
        raise SamplesUnfit(f"input {name!r} is {spec}, but the file's rows have {sizes} value(s)") from error
