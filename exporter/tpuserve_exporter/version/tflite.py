"""Writes a model for LiteRT, and loads it to compare its answers."""

import importlib.util
import re
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import CannotLower, MissingExtra, OptionConflict, ParityFailed, reason_of
from tpuserve_exporter.models.frameworks import stderr_caught
from tpuserve_exporter.options.signature_request import TENSOR_KIND
from tpuserve_exporter.signatures.served_signature import DevicePart, ServedSignature
from tpuserve_exporter.terms.signature import Signature, Tensors, read_signatures
from tpuserve_exporter.terms.texts import first
from tpuserve_exporter.version.saved_model_writer import write_saved_model

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

# SignatureDefs in the metadata of a TensorFlow Lite model, where TensorFlow Serving reads them.
#
# TensorFlow Serving does not read the signatures that current converters write. Without SignatureDefs, it makes up
# one named `serving_default` with inputs such as `serving_default_x` (servables/tensorflow/tflite_session.cc).
# SignatureDefs are a FlexBuffer map from name to serialized message in the model's metadata
# (tensorflow/lite/tools/signature).

_METADATA = "signature_defs_metadata"
_FILE_IDENTIFIER = b"TFL3"


def add_signature_defs(content: bytes, signatures: "Mapping[str, SignatureDef]") -> bytes:
    """Add the SignatureDefs of the model's first graph, the only one that servers read. Return the new model."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    written = {
        signature.signatureKey.decode(): _describe(model, signature, signatures[signature.signatureKey.decode()])
        for signature in model.signatureDefs
        if signature.subgraphIndex == 0
    }
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = list(_flex_map(written))
    entry.name, entry.buffer = _METADATA, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder(len(content) + len(buffer.data))
    builder.Finish(model.Pack(builder), _FILE_IDENTIFIER)
    return bytes(builder.Output())


def _describe(model: Any, signature: Any, definition: "SignatureDef") -> bytes:  # noqa: ANN401 - generated, untyped
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

    described = SignatureDef()
    described.CopyFrom(definition)
    tensors = model.subgraphs[signature.subgraphIndex].tensors
    for maps, infos in ((signature.inputs, described.inputs), (signature.outputs, described.outputs)):
        for one in maps:
            infos[one.name.decode()].name = tensors[one.tensorIndex].name.decode()
    return bytes(described.SerializeToString(deterministic=True))


def _flex_map(signatures: Mapping[str, bytes]) -> bytes:
    from flatbuffers import flexbuffers

    builder = flexbuffers.Builder()
    with builder.Map():
        for name, serialized in sorted(signatures.items()):
            builder.Key(name)
            # String() accepts only text, but TensorFlow's C++ code stores any bytes as a string.
            builder._WriteBlob(serialized, append_zero=True, type_=flexbuffers.Type.STRING)
    return bytes(builder.Finish())


TFLITE_FILE = Path("model.tflite")
# Matches the first location in a line of an error, and the unsupported operation.
_LACKING = re.compile(r"(?:\"([^\"@]+)@[^\"]*\".*)?'tf\.(\w+)' op is neither a custom op nor a flex op")


def check_litert() -> None:
    """Raise MissingExtra if LiteRT, which checks the model, is not installed."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise MissingExtra("--also tflite needs LiteRT for its checks. Run pip install 'tpuserve-exporter[tflite]'")


def write_tflite(version: Path, device: DevicePart, signatures: Collection[ServedSignature]) -> int:
    """Convert the device part with every signature of kind `tensor` into `version`. Return the file's size in bytes.

    The model omits host parts, because TensorFlow Lite can neither decode nor parse. Raises CannotLower for unsupported
    operations, and OptionConflict if no signature has the kind `tensor`.
    """
    bare = [signature for signature in signatures if signature.kind == TENSOR_KIND]
    if not bare:
        raise OptionConflict("--also tflite needs a signature of tensors. Add --signature NAME=tensor")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "device")
        write_saved_model(path, device, device.call, bare)
        return _convert(path, version)


def convert_saved_model(version: Path) -> int:
    """Convert the signatures without string inputs of a copied SavedModel, as `write_tflite` does."""
    return _convert(version, version)


def _signatures_of_tensors(saved_model: Path) -> "dict[str, SignatureDef]":
    """Return the signatures that take no strings. Raises CannotLower if there are none."""
    import tensorflow as tf
    from tensorflow.python.saved_model.loader_impl import parse_saved_model

    string = tf.string.as_datatype_enum
    definitions = parse_saved_model(str(saved_model)).meta_graphs[0].signature_def
    found = {
        name: definitions[name]
        for name in read_signatures(definitions)
        if all(info.dtype != string for info in definitions[name].inputs.values())
    }
    if not found:
        raise CannotLower(
            "--also tflite does not apply: every signature takes strings, which TensorFlow Lite cannot parse"
        )
    return found


def _convert(saved_model: Path, version: Path) -> int:
    import tensorflow as tf

    signatures = _signatures_of_tensors(saved_model)
    try:
        with stderr_caught():
            converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model), signature_keys=list(signatures))
            content: bytes = converter.convert()
    except Exception as error:  # ConverterError is private, and there are others
        raise CannotLower(_explain(str(error), reason_of(error))) from error
    return (version / TFLITE_FILE).write_bytes(add_signature_defs(content, signatures))


def _explain(message: str, reason: str) -> str:
    places = {found[2]: found[1] for line in message.splitlines() if (found := _LACKING.search(line))}
    if not places:
        return f"--also tflite: cannot convert the model: {reason[:300]}"
    named = [f"{operation} ({place})" if place else operation for operation, place in sorted(places.items())]
    lacking = first(named)
    if "bf16" in message:
        return (
            f"--also tflite: TensorFlow Lite has no bfloat16 for {lacking}. Use --compute-dtype float32, or omit "
            "--also tflite"
        )
    return f"--also tflite: TensorFlow Lite does not support {lacking}, or not in this form. Omit --also tflite"


class TfliteModel:
    """A model in LiteRT, which runs the signatures in its file."""

    def __init__(self, path: Path) -> None:
        """Load the file. Raises ParityFailed if LiteRT refuses it."""
        from ai_edge_litert.interpreter import Interpreter

        try:
            # LiteRT writes messages on its delegates directly to the file descriptor.
            with stderr_caught():
                self._interpreter = Interpreter(model_path=str(path))
        except (ValueError, RuntimeError) as error:
            raise ParityFailed(f"{path.name} does not load in LiteRT: {error}") from error
        self.signatures: frozenset[str] = frozenset(self._interpreter.get_signature_list())
        self._runners: dict[str, Any] = {}  # LiteRT is untyped

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises ParityFailed if LiteRT fails."""
        try:
            with stderr_caught():
                if signature.name not in self._runners:
                    self._runners[signature.name] = self._interpreter.get_signature_runner(signature.name)
                outputs: Tensors = self._runners[signature.name](**inputs)
        except (ValueError, RuntimeError) as error:
            raise ParityFailed(f"{signature.name} fails in LiteRT: {error}") from error
        return outputs
