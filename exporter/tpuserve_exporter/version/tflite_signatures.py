"""SignatureDefs within a TensorFlow Lite model, where TensorFlow Serving looks for them.

TensorFlow Serving knows nothing of the signatures that converters write by now: without SignatureDefs it makes up one,
called `serving_default`, whose inputs are called `serving_default_x` (servables/tensorflow/tflite_session.cc). They are
a FlexBuffer map from name to serialized message in the model's metadata (tensorflow/lite/tools/signature).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

_METADATA = "signature_defs_metadata"
_FILE_IDENTIFIER = b"TFL3"


def add_signature_defs(content: bytes, signatures: "Mapping[str, SignatureDef]") -> bytes:
    """The model with those of `signatures` that its first graph has: no server of SignatureDefs looks at others."""
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
    """The SavedModel's own signature, with the tensors' names in this file."""
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
            # String() takes text alone; the C++ that writes these puts any bytes into a string.
            builder._WriteBlob(serialized, append_zero=True, type_=flexbuffers.Type.STRING)
    return bytes(builder.Finish())
