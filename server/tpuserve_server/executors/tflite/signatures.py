"""Signatures of a TensorFlow Lite model, by TensorFlow Serving's rules (servables/tensorflow/tflite_session.cc)."""

import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers
from google.protobuf.message import DecodeError

from tpuserve_formats.messages.official import MetaGraphDef, TensorInfo
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import DEFAULT_SIGNATURE_NAME, Signature, TensorSpec
from tpuserve_server.executors.tensorflow.meta_graph import read_signatures

logger = logging.getLogger(__name__)

# SignatureDefs of tensorflow/lite/tools/signature: a FlexBuffer map from name to serialized message.
_METADATA_NAME = b"signature_defs_metadata"
_PREDICT_METHOD_NAME = "tensorflow/serving/predict"


@dataclass(frozen=True, slots=True)
class Ends:
    """Input or output tensors of a model: their indices in the interpreter and their specs, by name in the file."""

    index: Mapping[str, int]
    spec: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, details: Sequence[Mapping[str, Any]]) -> "Ends":
        """Read the tensors from an interpreter's `get_input_details` or `get_output_details`.

        Raises:
            InvalidArgument: two tensors have the same name.
        """
        names = [detail["name"] for detail in details]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(f"The TensorFlow Lite model's tensor name: {name} has multiple indices")
        specs = {detail["name"]: tensor_spec(detail["name"], detail) for detail in details}
        return cls({detail["name"]: int(detail["index"]) for detail in details}, specs)

    def resolve(self, name: str) -> str | None:
        """Return the tensor's name in the model, or None. Early converters stripped the `:0` of TensorFlow's names."""
        stripped = name.partition(":")[0]
        return name if name in self.index else stripped if stripped in self.index else None


def tensor_spec(alias: str, detail: Mapping[str, Any]) -> TensorSpec:
    """Return the spec of a tensor. Free dimensions are those that the converter kept free."""
    dtype = np.dtype(object) if detail["dtype"] is np.bytes_ else np.dtype(detail["dtype"])
    dims = tuple(int(size) if size >= 0 else None for size in detail["shape_signature"])
    return TensorSpec(alias, dtype, dims, graph_name=detail["name"])


def metadata_signatures(content: bytes, inputs: Ends, outputs: Ends) -> dict[str, Signature]:
    """Return the signatures of the SignatureDefs in the model's metadata; empty if it has none.

    Raises:
        InvalidArgument: the SignatureDefs cannot be read, or name an unknown tensor.
    """
    meta_graph = MetaGraphDef()
    try:
        for name, serialized in _serialized_signatures(content).items():
            meta_graph.signature_def[name].ParseFromString(serialized)
    except (DecodeError, ValueError, TypeError, IndexError, struct.error) as error:
        raise InvalidArgument(f"Invalid SignatureDefs found in TfLite model: {type(error).__name__}") from error
    for definition in meta_graph.signature_def.values():
        _resolve(definition.inputs, inputs, "input")
        _resolve(definition.outputs, outputs, "output")
    return read_signatures(meta_graph)


def generated_signature(inputs: Ends, outputs: Ends) -> Signature:
    """Return `serving_default` for a model without SignatureDefs, with the names of its tensors without `:0`.

    If names differ only in `:n`, the last tensor takes the short name, as in TensorFlow Serving. TensorFlow Serving
    loses the other tensors. Here they keep their full names.
    """
    logger.info("No signature def found in TFLite model. Generating one.")
    return Signature(DEFAULT_SIGNATURE_NAME, _generated(inputs), _generated(outputs), _PREDICT_METHOD_NAME)


def _generated(ends: Ends) -> dict[str, TensorSpec]:
    last = {name.partition(":")[0]: name for name in sorted(ends.index)}
    aliases = {name: short for short, name in last.items()}
    named = {aliases.get(name, name): spec for name, spec in ends.spec.items()}
    return {
        alias: TensorSpec(alias, spec.dtype, spec.shape, graph_name=spec.graph_name)
        for alias, spec in sorted(named.items())
    }


def _resolve(infos: Mapping[str, TensorInfo], ends: Ends, kind: str) -> None:
    for alias, info in infos.items():
        name = ends.resolve(info.name)
        if name is None:
            raise InvalidArgument(
                f"Signature {kind} {alias} references an unknown tensor: Unknown tensor '{info.name}'."
            )
        info.name = name


def _serialized_signatures(content: bytes) -> dict[str, bytes]:
    model = schema.Model.GetRootAsModel(content, 0)
    for index in range(model.MetadataLength()):
        entry = model.Metadata(index)
        if entry.Name() == _METADATA_NAME:
            written = model.Buffers(entry.Buffer()).DataAsNumpy()
            signatures = flexbuffers.GetRoot(bytearray(written.tobytes())).AsMap
            return {
                key.AsKey: bytes(value.AsStringBytes)
                for key, value in zip(signatures.Keys, signatures.Values, strict=True)
            }
    return {}
