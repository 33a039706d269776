"""Reader of a MetaGraphDef's signatures and properties, without its graph, which may have any size."""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages import fields
from tpuserve_formats.messages.official import MetaGraphDef, TensorInfo, TensorProto
from tpuserve_formats.tensor_proto import decode_tensor
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, RowSplits, Signature, TensorSpec
from tpuserve_server.executors.tensorflow import TENSORFLOW
from tpuserve_server.executors.tensorflow.start import start_tensorflow, tensorflow_modules

_log = logging.getLogger(__name__)
_NUMBERS = {field.name: field.number for field in MetaGraphDef.DESCRIPTOR.fields}
# The exporter's collection of ragged tensors: names of row splits by the name of their values, for each signature.
_ROW_SPLITS = "tpuserve_row_splits"


def parse_signatures(meta_graph: bytes) -> dict[str, Signature]:
    """Return the signatures of a serialized MetaGraphDef.

    Parsing the whole message would hold the interpreter's lock for long, because the graph contains the constants.

    Raises:
        InvalidArgument: the bytes are not a MetaGraphDef.
    """
    collections = (one for one in _each("collection_def", meta_graph) if _ROW_SPLITS.encode() in one)
    return read_signatures(MetaGraphDef.FromString(_only("signature_def", meta_graph) + b"".join(collections)))


def read_signatures(meta_graph: MetaGraphDef) -> dict[str, Signature]:
    """Return the callable signatures of a MetaGraphDef, without initialisers and other internal ones.

    Signatures with tensors that no message can carry, such as resources, are omitted with a warning.

    Raises:
        InvalidArgument: a default is not a tensor.
    """
    ragged = _read_row_splits(meta_graph)
    signatures: dict[str, Signature] = {}
    for name, definition in sorted(meta_graph.signature_def.items()):
        if name.startswith("__saved_model_"):
            continue
        try:
            inputs, outputs = _tensor_specs(definition.inputs), _tensor_specs(definition.outputs)
        except _NotCarriedError as error:
            _log.warning("Signature %r is not served: %s", name, error)
            continue
        signatures[name] = Signature(
            name=name,
            inputs=inputs,
            outputs=outputs,
            method_name=definition.method_name,
            defaults={alias: _default(alias, tensor) for alias, tensor in sorted(definition.defaults.items())},
            ragged_inputs=_splits(ragged, name, "inputs", definition.inputs),
            ragged_outputs=_splits(ragged, name, "outputs", definition.outputs),
        )
    return signatures


class _NotCarriedError(Exception):
    """A signature has a tensor that no message can carry."""


def _read_row_splits(meta_graph: MetaGraphDef) -> Mapping[str, Mapping[str, RowSplits]]:
    """Read the row splits by signature and side."""
    if _ROW_SPLITS not in meta_graph.collection_def:
        return {}
    try:
        by_signature = json.loads(meta_graph.collection_def[_ROW_SPLITS].bytes_list.value[0])
        return {
            signature: {
                side: {str(values): tuple(map(str, names)) for values, names in sides[side].items()}
                for side in ("inputs", "outputs")
            }
            for signature, sides in by_signature.items()
        }
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the collection {_ROW_SPLITS} is damaged. Export the version again") from error


def _splits(
    ragged: Mapping[str, Mapping[str, RowSplits]], name: str, side: str, tensors: Mapping[str, TensorInfo]
) -> RowSplits:
    """Return one side's row splits. Raises InvalidArgument for names that the signature does not have."""
    splits = ragged.get(name, {}).get(side, {})
    if unknown := {one for values, names in splits.items() for one in (values, *names)} - set(tensors):
        raise InvalidArgument(f"the collection {_ROW_SPLITS} names {', '.join(sorted(unknown))}, which {name} lacks")
    return splits


def _tensor_specs(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorSpec]:
    return {alias: _tensor_spec(alias, info) for alias, info in sorted(tensors.items())}


def _tensor_spec(alias: str, info: TensorInfo) -> TensorSpec:
    shape = info.tensor_shape
    dims = None if shape.unknown_rank else tuple(dim.size if dim.size >= 0 else None for dim in shape.dim)
    wire_type = BY_NUMBER.get(info.dtype)
    dtype = wire_type.dtype if wire_type else _rare_dtype(alias, info.dtype)
    return TensorSpec(alias, dtype, dims, graph_name=info.name)


def _rare_dtype(alias: str, number: int) -> np.dtype[Any]:
    """Return TensorFlow's dtype of tensors that no protocol carries. TensorFlow Lite models load without it.

    Raises:
        MissingRuntime: TensorFlow is not installed.
        _NotCarriedError: numpy has no such dtype.
    """
    if not TENSORFLOW.is_installed:
        raise TENSORFLOW.missing("a signature's dtype needs")
    start_tensorflow()
    with tensorflow_modules():
        from tensorflow.python.framework import dtypes
    try:
        dtype = dtypes.as_dtype(number)
    except TypeError:
        raise _NotCarriedError(f"tensor {alias!r} has the unknown data type {number}") from None
    try:
        found: np.dtype[Any] = np.dtype(dtype.as_numpy_dtype)
    except KeyError:
        raise _NotCarriedError(f"tensor {alias!r} is a {dtype.name}, which no message can carry") from None
    return found


def _default(alias: str, tensor: TensorProto) -> Array:
    try:
        return decode_tensor(tensor, lenient=True)
    except FormatError as error:
        raise InvalidArgument(f"tensor parsing error: {alias}") from error


def _only(field: str, meta_graph: bytes) -> bytes:
    return b"".join(_each(field, meta_graph))


def _each(field: str, meta_graph: bytes) -> Iterator[bytes]:
    number = _NUMBERS[field]
    return (meta_graph[start:end] for found, start, _, end in message_fields(meta_graph) if found == number)


def message_fields(message: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield each length-delimited field of a serialized MetaGraphDef, as `fields.message_fields` does.

    Raises:
        InvalidArgument: the message is damaged.
    """
    try:
        yield from fields.message_fields(message)
    except FormatError as error:
        raise InvalidArgument("the MetaGraphDef is damaged") from error
