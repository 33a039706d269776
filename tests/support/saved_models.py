"""SavedModels for tests, created with TensorFlow."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2


def save_half_plus_two(path: Path) -> Path:
    """Save TensorFlow Serving's own example in its original form (v1, placeholder (None, 1)): y = x / 2 + 2."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 1], "x")
        half = tf.compat.v1.get_variable("half", initializer=0.5, use_resource=True)
        y = tf.add(tf.multiply(half, x), 2.0, name="y")
        session.run(tf.compat.v1.global_variables_initializer())
        signature = tf.compat.v1.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": y})
        builder = tf.compat.v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    return path


def save_function(path: Path, function: Callable[..., Mapping[str, tf.Tensor]], *specs: tf.TensorSpec) -> Path:
    """Save a tf.Module with one function as `serving_default`."""
    module = tf.Module()
    module.serve = tf.function(function, input_signature=specs)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    return path


def save_broken(path: Path, broken: str = "serving_default", *working: str) -> Path:
    """Save a model whose signature `broken` has an operation without a kernel for CPUs, and others that work."""
    column = tf.TensorSpec([None, 2], tf.float32, "x")
    inner = tf.function(lambda x: tf.raw_ops.CollectivePermute(input=x, source_target_pairs=[[0, 0]]))
    functions = {broken: tf.function(lambda x: {"y": inner(x)}, input_signature=[column])}
    functions |= {name: tf.function(lambda x: {"y": x + 1}, input_signature=[column]) for name in working}
    tf.saved_model.save(tf.Module(), str(path), signatures=functions)
    return path


def as_text(path: Path) -> Path:
    """Replace `saved_model.pb` of a saved model by `saved_model.pbtxt`."""
    binary = path / "saved_model.pb"
    text = text_format.MessageToString(SavedModel.FromString(binary.read_bytes()))
    (path / "saved_model.pbtxt").write_text(text)
    binary.unlink()
    return path


def save_mlp(path: Path, seed: int = 0) -> Path:
    """Save a model from 64 to 10 numbers, float32, with independent rows: x -> y."""
    random = np.random.default_rng(seed)
    weights = tf.Variable(random.standard_normal((64, 10)).astype(np.float32))
    module = tf.Module()
    module.weights = weights
    module.serve = tf.function(
        lambda x: {"y": tf.nn.relu(tf.matmul(x, weights))},
        input_signature=[tf.TensorSpec([None, 64], tf.float32, "x")],
    )
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    return path


def write_manifest(path: Path, *, batch_sizes: tuple[int, ...] = (1, 2, 4), **fields: object) -> Path:
    """Write a manifest in the format of docs/reference/manifest.md for the existing files."""
    files = {
        str(file.relative_to(path)): {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "size_bytes": file.stat().st_size,
        }
        for file in path.rglob("*")
        if file.is_file()
    }
    manifest = {
        "format_version": 1,
        "signatures": {"serving_default": {"batch_sizes": batch_sizes, "rows_independent": True}},
        "files": files,
        **fields,
    }
    target = path / "assets.extra" / "tpuserve" / "manifest.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(manifest))
    return target


def write_warmup(path: Path, *requests: predict_pb2.PredictRequest) -> None:
    """Write warm-up records to TensorFlow Serving's path."""
    write_logs(
        path,
        *(
            prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            for request in requests
        ),
    )


def write_logs(path: Path, *logs: prediction_log_pb2.PredictionLog) -> None:
    """Write warm-up records of any kind."""
    target = path / "assets.extra" / "tf_serving_warmup_requests"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(target)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())


def predict_request(signature_name: str = "", **inputs: object) -> predict_pb2.PredictRequest:
    """Return a PredictRequest with these inputs."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature_name
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request
