"""The user's samples: arrays of an .npz file, or tf.Examples of a TFRecord file."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit, reason_of
from tpuserve_exporter.options.array_files import read_numpy
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec

if TYPE_CHECKING:
    from tensorflow.core.example.example_pb2 import Example
    from tensorflow.core.example.feature_pb2 import Feature

# The most records to read from a TFRecord file, which may be a whole data set.
MOST_RECORDS = 1000
_GZIP = b"\x1f\x8b"
_NUMPY = b"\x93NUMPY"


class SampleFile(Protocol):
    """Rows of samples for any signature."""

    def find(self, name: str, signature: Signature) -> Array:
        """Return rows for one input. Raises SamplesUnfit, with a list of the file's content, if it has none."""
        ...

    def as_examples(self, signature: Signature) -> Array | None:
        """Return the rows as serialized tf.Examples, or None if the file's content cannot be split into rows."""
        ...


def open_samples(path: Path, pad_values: Mapping[str, PadValue]) -> SampleFile:
    """Read the file as .npz, detected by its name or content, or else as TFRecord. Raises SamplesUnfit.

    Sequences of a TFRecord are padded to the longest one with `pad_values` by input, or with 0.
    """
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise SamplesUnfit(f"cannot read {path.name}: {error.strerror}") from error
    if path.suffix == ".npz" or start.startswith((b"PK", _NUMPY)):
        return ArraysFile(path)
    return RecordsFile(path, "GZIP" if start.startswith(_GZIP) else "", pad_values)


class ArraysFile:
    """Arrays named `INPUT` or `SIGNATURE/INPUT` in an .npz file."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._arrays = _load_arrays(path)

    def find(self, name: str, signature: Signature) -> Array:
        for key in (f"{signature.name}/{name}", name):
            if key in self._arrays:
                return self._arrays[key]
        available = ", ".join(sorted(self._arrays)) or "nothing"
        raise SamplesUnfit(f"{self._name} has no array for input {name!r} of {signature.name}. It has {available}")

    def as_examples(self, signature: Signature) -> Array | None:
        """Return tf.Examples with a feature for each array, or None if the arrays differ in their rows."""
        prefix = f"{signature.name}/"
        arrays = {name.removeprefix(prefix): value for name, value in self._arrays.items()}
        counts = {len(value) if value.ndim else 0 for value in arrays.values()}
        if len(counts) != 1 or any(value.dtype.kind not in "fiubSU" for value in arrays.values()):
            return None
        rows = [_encode({name: value[row] for name, value in arrays.items()}) for row in range(counts.pop())]
        return np.array(rows, object)


def _load_arrays(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file) and not _is_bare_array(file):
                raise SamplesUnfit(f"cannot read {path.name} as an .npz file: it is truncated or has another format")
            file.seek(0)
            arrays = read_numpy(file)
    except (OSError, ValueError) as error:
        raise SamplesUnfit(f"cannot read {path.name} as an .npz file: {error}") from error
    if arrays.keys() == {""}:
        raise SamplesUnfit(
            f"{path.name} is one array without a name. Save it under the input's name with np.savez(file, NAME=array)"
        )
    return arrays


def _is_bare_array(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(len(_NUMPY)) == _NUMPY


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


class RecordsFile:
    """The first tf.Examples of a TFRecord file. They have a feature for each input, or are the input itself."""

    def __init__(self, path: Path, compression: str, pad_values: Mapping[str, PadValue]) -> None:
        self._name = path.name
        self._pad_values = pad_values
        self._records = _load_records(path, compression)
        self._examples = [_parse(record, index, path) for index, record in enumerate(self._records)]

    def find(self, name: str, signature: Signature) -> Array:
        features = [self._find(name, index) for index in range(len(self._examples))]
        lists = [getattr(feature, feature.WhichOneof("kind") or "float_list").value for feature in features]
        return _stack(name, signature.inputs[name], lists, self._pad_values.get(name))

    def as_examples(self, signature: Signature) -> Array | None:
        return np.array(self._records, object)

    def _find(self, name: str, index: int) -> "Feature":
        features = self._examples[index].features.feature
        if name not in features:
            available = ", ".join(sorted(features)) or "nothing"
            raise SamplesUnfit(f"record {index} of {self._name} has no feature {name!r}. It has {available}")
        return features[name]


def _load_records(path: Path, compression: str) -> list[bytes]:
    import tensorflow as tf

    records: list[bytes] = []
    try:
        for record in tf.data.TFRecordDataset(str(path), compression).take(MOST_RECORDS):
            records.append(record.numpy())  # noqa: PERF401 - those read before the damage count it
    except tf.errors.OpError as error:
        read = f"damaged after {len(records)} record(s)" if records else "neither .npz nor TFRecord"
        raise SamplesUnfit(f"cannot read {path.name}: it is {read}") from error
    if not records:
        raise SamplesUnfit(f"{path.name} contains no records")
    return records


def _parse(record: bytes, index: int, path: Path) -> "Example":
    from google.protobuf.message import DecodeError
    from tensorflow.core.example.example_pb2 import Example

    try:
        return Example.FromString(record)
    except DecodeError as error:
        raise SamplesUnfit(f"record {index} of {path.name} is not a tf.Example: {reason_of(error)}") from error


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
        return np.array([np.array(values, dtype).reshape(shape) for values in lists])
    except ValueError as error:
        sizes = ", ".join(map(str, sorted({len(values) for values in lists})))
        raise SamplesUnfit(f"input {name!r} is {spec}, but the file's rows have {sizes} value(s)") from error
