"""SignatureDefs in the metadata of a TensorFlow Lite model, where TensorFlow Serving reads them.

TensorFlow Serving does not read the signatures that current converters write. Without SignatureDefs, it makes up one
named `serving_default` with inputs such as `serving_default_x` (servables/tensorflow/tflite_session.cc). SignatureDefs
are a FlexBuffer map from name to serialized message in the model's metadata (tensorflow/lite/tools/signature).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

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
    """Return the SavedModel's signature with the tensor names of this file."""
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
