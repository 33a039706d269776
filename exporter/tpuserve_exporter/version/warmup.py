"""Warm-up requests in TensorFlow Serving's file, a TFRecord of PredictionLog: one for each signature and batch size.

Each record also has the version's response, as in a request log. Servers ignore it, and load tests compare with it.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.terms.samples import check_lengths, take_rows
from tpuserve_exporter.terms.signature import Array, Signature, Tensors
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_exporter.version.warmup_records import (
    WARMUP_FILE,
    is_prediction,
    parse_log,
    read_records_of,
    read_request,
    signature_name,
)
from tpuserve_formats.tf_record import framed

# Responses beyond this total are omitted. A model that returns images would make its version much larger.
_MOST_ANSWER_BYTES = 16 * 2**20


def write_warmup(
    version: Path,
    model_name: str,
    requests: Iterable[tuple[Signature, Tensors]],
    batch_sizes: Sequence[int],
    model: SessionModel,
) -> int:
    """Write requests with the first rows of each signature's samples, and `model`'s outputs, into a version directory.

    Returns the number of records. Raises SamplesUnfit for a request that fails, because servers could not load the
    version.
    """
    records = []
    room = _MOST_ANSWER_BYTES
    for signature, samples in requests:
        for rows in batch_sizes if signature.is_batchable else (None,):
            inputs = samples if rows is None else take_rows(samples, slice(0, rows))
            size = "" if rows is None else f" of {rows} row(s)"
            answer = _answer(model, signature, inputs, f"the warm-up request{size}")
            room -= sum(array.nbytes for array in answer.values())
            records.append(_record(model_name, signature, inputs, answer if room >= 0 else {}))
    _write(version, records)
    return len(records)


def hash_requests(version: Path) -> str | None:
    """Return the SHA-256 of the requests without their responses, or None without the file.

    The last bits of responses differ between machines.
    """
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    if not (version / WARMUP_FILE).is_file():
        return None
    digest = hashlib.sha256()
    for record in read_records_of(version):
        log = PredictionLog.FromString(record)
        if is_prediction(log):
            log.predict_log.ClearField("response")
        content = log.SerializeToString(deterministic=True)
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def keep_warmup(
    version: Path,
    model: SessionModel,
    signatures: Collection[str],
    sequences: SequenceOptions,
    warn: Callable[[str], None],
) -> int:
    """Run the warm-up requests of a SavedModel, and keep the predictions for `signatures`, which servers here support.

    Returns the number of kept records. Servers could not load the version with a request that fails or is too long, a
    damaged file, or too many records. This raises SamplesUnfit for them.
    """
    records = read_records_of(version)
    logs = [parse_log(record, index) for index, record in enumerate(records)]
    for index, log in enumerate(logs):
        if is_prediction(log):
            signature, inputs = read_request(log.predict_log.request, model.signatures, f"warm-up record {index}")
            check_lengths(signature, inputs, sequences, f"warm-up record {index}")
            _answer(model, signature, inputs, f"warm-up record {index}")
    predictions = [(record, log) for record, log in zip(records, logs, strict=True) if is_prediction(log)]
    kept = [record for record, log in predictions if signature_name(log.predict_log.request) in signatures]
    warn(f"the source's own warm-up requests: {len(kept)} of {len(records)} are kept")
    if len(predictions) < len(records):
        warn(f"{len(records) - len(predictions)} warm-up request(s) were dropped because they are not predictions")
    if len(kept) < len(records):
        _write(version, kept)
    return len(kept)


def read_recorded(version: Path, model: SessionModel) -> list[tuple[Signature, Tensors, Tensors]]:
    """Return recorded predictions with a response as (signature of `model`, inputs, outputs), or [] without the file.

    Raises SamplesUnfit for a damaged file, and for a request that `model` does not take.
    """
    import tensorflow as tf

    if not (version / WARMUP_FILE).is_file():
        return []
    logs = [parse_log(record, index) for index, record in enumerate(read_records_of(version))]
    recorded: list[tuple[Signature, Tensors, Tensors]] = []
    for index, log in enumerate(logs):
        if is_prediction(log) and log.predict_log.response.outputs:
            signature, inputs = read_request(log.predict_log.request, model.signatures, f"record {index}")
            outputs = log.predict_log.response.outputs.items()
            recorded.append((signature, inputs, {name: tf.make_ndarray(tensor) for name, tensor in outputs}))
    return recorded


def _write(version: Path, records: Iterable[bytes]) -> None:
    path = version / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(map(framed, records)))


def _answer(model: SessionModel, signature: Signature, inputs: Tensors, what: str) -> dict[str, Array]:
    import tensorflow as tf

    try:
        return {name: np.asarray(value) for name, value in model.run(signature, inputs).items()}
    except (tf.errors.OpError, SamplesUnfit) as error:
        raise SamplesUnfit(f"{what} for {signature.name} fails: {reason_of(error)}") from error


def _record(model_name: str, signature: Signature, inputs: Tensors, answer: Tensors) -> bytes:
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
    for name, value in answer.items():
        log.predict_log.response.outputs[name].CopyFrom(tf.make_tensor_proto(value, signature.outputs[name].dtype))
    # Deterministic order of the inputs, so that exports of one model write the same bytes.
    return bytes(log.SerializeToString(deterministic=True))
