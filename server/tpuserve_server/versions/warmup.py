"""Warm-up: every bucket of every signature runs once before a version is AVAILABLE, so that no request is the first."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import DEFAULT_SIGNATURE_NAME, Array, Signature, Tensors
from tpuserve_server.core.validation import check_names, matches_shapes
from tpuserve_server.wire.tensor_proto import decode_tensor

RECORDS_PATH = Path("assets.extra", "tf_serving_warmup_requests")

# As TensorFlow Serving: more are an error, not a longer start (servables/tensorflow/saved_model_warmup_util.cc).
MAX_RECORDS = 1000


def warm_up(servable: Servable, version_path: Path, options: Mapping[str, BatchingOptions]) -> int:
    """Run the recorded requests, then each bucket with recorded or made-up rows; blocks. Returns the number of runs.

    Raises:
        ServingError: a recorded request failed. Made-up rows may be nonsense to a model: their failure is no error.
    """
    runs = 0
    samples: dict[str, Tensors] = {}
    for signature, inputs in _read_records(servable, version_path / RECORDS_PATH):
        servable.dispatch(signature.name, inputs, tuple(signature.outputs)).result()
        samples.setdefault(signature.name, inputs)
        runs += 1
    for name, batching in options.items():
        signature = servable.signatures[name]
        # Without buckets nothing is padded, and no size is more likely than another.
        for bucket in batching.buckets or (1,):
            runs += _run_bucket(servable, signature, _resize(samples.get(name), signature, bucket), name in samples)
    return runs


def _run_bucket(servable: Servable, signature: Signature, inputs: Tensors, recorded: bool) -> int:
    try:
        servable.dispatch(signature.name, inputs, tuple(signature.outputs)).result()
    except ServingError:
        if recorded:
            raise
        return 0
    return 1


def _read_records(servable: Servable, path: Path) -> Iterator[tuple[Signature, Tensors]]:
    if not path.exists():
        return
    for index, record in enumerate(_read_file(path)):
        if index >= MAX_RECORDS:
            raise InvalidArgument(f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {RECORDS_PATH}")
        try:
            yield _predict_inputs(servable, prediction_log_pb2.PredictionLog.FromString(record))
        except (DecodeError, ServingError) as error:
            raise FailedPrecondition(f"Warm-up record {index} in {RECORDS_PATH}: {error}") from error


def _read_file(path: Path) -> Iterator[bytes]:
    try:
        yield from tf.compat.v1.io.tf_record_iterator(str(path))
    except tf.errors.OpError as error:
        raise FailedPrecondition(f"{RECORDS_PATH} cannot be read: it is cut short or no TFRecord") from error


def _predict_inputs(servable: Servable, log: prediction_log_pb2.PredictionLog) -> tuple[Signature, Tensors]:
    kind = log.WhichOneof("log_type")
    if kind != "predict_log":
        raise InvalidArgument(f"kind {kind} is not supported; expected predict_log")
    request: predict_pb2.PredictRequest = log.predict_log.request
    name = request.model_spec.signature_name or DEFAULT_SIGNATURE_NAME
    signature = servable.signatures.get(name)
    if signature is None:
        raise FailedPrecondition(f'Serving signature key "{name}" not found.')
    inputs = {alias: decode_tensor(alias, tensor) for alias, tensor in request.inputs.items()}
    check_names(signature, inputs)
    return signature, inputs


def _resize(sample: Tensors | None, signature: Signature, rows: int) -> Tensors:
    """`rows` rows like the sample's first; zeros and empty strings, 1 for free dimensions, where there is no sample."""
    if sample is not None and matches_shapes(signature, sample) and all(len(array) for array in sample.values()):
        return {name: np.repeat(array[:1], rows, axis=0) for name, array in sample.items()}
    return {name: _blank(signature, name, rows) for name in signature.inputs}


def _blank(signature: Signature, name: str, rows: int) -> Array:
    spec = signature.inputs[name]
    inner = [1 if size is None else size for size in (spec.shape or ())[1:]]
    if spec.dtype.hasobject:
        return np.full((rows, *inner), b"", dtype=object)
    return np.zeros((rows, *inner), spec.dtype)
