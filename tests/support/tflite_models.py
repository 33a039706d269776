"""TensorFlow Lite models for tests, converted at run time, and SignatureDefs at TensorFlow Serving's place."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import flatbuffers
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers
from tensorflow.core.protobuf import meta_graph_pb2

Function = Callable[..., Mapping[str, tf.Tensor]]


def convert(**signatures: tuple[Function, tf.TensorSpec]) -> bytes:
    """Return a model with these signatures of one input each, in the current converter's format."""
    module = tf.Module()
    for name, (function, spec) in signatures.items():
        setattr(module, name, tf.function(function, input_signature=[spec]))
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={name: getattr(module, name) for name in signatures})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(signatures))
        content: bytes = converter.convert()
    return content


def half_plus_two() -> bytes:
    """Return a model of y = x / 2 + 2, for x float [?, 1]."""
    return convert(serving_default=(lambda x: {"y": x / 2 + 2}, tf.TensorSpec([None, 1], tf.float32, "x")))


def with_metadata(content: bytes, written: bytes) -> bytes:
    """Return the model with this metadata, where tensorflow/lite/tools/signature keeps SignatureDefs."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = list(written)
    entry.name, entry.buffer = "signature_defs_metadata", len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder(len(content) + len(written))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def flex_map(signatures: Mapping[str, bytes]) -> bytes:
    """Return a FlexBuffer map of serialized SignatureDefs."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for name, serialized in signatures.items():
            builder.Key(name)
            # String() accepts only text. The C++ writer puts any bytes into a string.
            builder._WriteBlob(serialized, append_zero=True, type_=flexbuffers.Type.STRING)
    return bytes(builder.Finish())


def signature_def(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> meta_graph_pb2.SignatureDef:
    """Return a float signature [?, 1] that maps aliases to tensors' names."""
    definition = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for aliases, infos in ((inputs, definition.inputs), (outputs, definition.outputs)):
        for alias, name in aliases.items():
            infos[alias].name = name
            infos[alias].dtype = tf.float32.as_datatype_enum
            infos[alias].tensor_shape.CopyFrom(tf.TensorShape([None, 1]).as_proto())
    return definition


def save(path: Path, content: bytes) -> Path:
    """Write a version directory with only the model."""
    path.mkdir(parents=True)
    (path / "model.tflite").write_bytes(content)
    return path
