"""Warm-up requests where TensorFlow Serving looks for them: a TFRecord of PredictionLog, one per signature and size."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tpuserve_exporter.samples import take_rows
from tpuserve_exporter.signature import Signature, Tensors

WARMUP_FILE = Path("assets.extra/tf_serving_warmup_requests")


def write_warmup(
    version: Path, model_name: str, requests: Iterable[tuple[Signature, Tensors]], batch_sizes: Sequence[int]
) -> int:
    """Write the file into a version directory, with the first rows of each signature's samples.

    Returns the number of records; TF Serving reads up to 1000.
    """
    import tensorflow as tf

    path = version / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    count = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, samples in requests:
            for rows in batch_sizes if signature.is_batchable else (None,):
                inputs = samples if rows is None else take_rows(samples, slice(0, rows))
                writer.write(_record(model_name, signature, inputs))
                count += 1
    return count


def _record(model_name: str, signature: Signature, inputs: Tensors) -> bytes:
    import tensorflow as tf
    from tensorflow_serving.apis.predict_pb2 import PredictRequest
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    request = PredictRequest()
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature.name
    for name, spec in signature.inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(inputs[name], dtype=spec.dtype))
    log = PredictionLog()
    log.predict_log.request.CopyFrom(request)
    return bytes(log.SerializeToString())
