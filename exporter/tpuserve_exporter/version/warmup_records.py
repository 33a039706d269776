"""Reads the warm-up requests of a SavedModel: a TFRecord of PredictionLog, as TensorFlow Serving has it."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SamplesUnfit, reason_of
from tpuserve_exporter.terms.signature import Signature, Tensors
from tpuserve_formats.errors import FormatError
from tpuserve_formats.tf_record import read_records

if TYPE_CHECKING:
    from tensorflow_serving.apis.predict_pb2 import PredictRequest
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

WARMUP_FILE = Path("assets.extra/tf_serving_warmup_requests")
# Servers refuse a version with more (saved_model_warmup_util.cc of TensorFlow Serving).
MAX_RECORDS = 1000
_DEFAULT_SIGNATURE = "serving_default"


def read_requests(version: Path, signatures: Mapping[str, Signature]) -> list[tuple[Signature, Tensors]]:
    """Return the predictions for `signatures` with their inputs, or [] without the file. Raises SamplesUnfit."""
    if not (version / WARMUP_FILE).is_file():
        return []
    logs = [parse_log(record, index) for index, record in enumerate(read_records_of(version))]
    requests = [log.predict_log.request for log in logs if is_prediction(log)]
    return [
        read_request(request, signatures, "a warm-up request")
        for request in requests
        if signature_name(request) in signatures
    ]


def read_records_of(version: Path) -> list[bytes]:
    """Return the records of a version's warm-up file. Raises SamplesUnfit for a damaged file or too many records."""
    path = version / WARMUP_FILE
    records: list[bytes] = []
    try:
        with path.open("rb") as file:
            for record in islice(read_records(file), MAX_RECORDS + 1):
                records.append(record)  # noqa: PERF402 - the error counts the records before the damage
    except (FormatError, OSError) as error:
        raise SamplesUnfit(f"{WARMUP_FILE.name} is damaged after {len(records)} record(s)") from error
    if not records and path.stat().st_size:  # shorter than a record header, which TensorFlow ignores
        raise SamplesUnfit(f"{WARMUP_FILE.name} is damaged: it contains no records")
    if len(records) > MAX_RECORDS:
        raise SamplesUnfit(f"{WARMUP_FILE.name} has more than {MAX_RECORDS} records, which no server accepts")
    return records


def parse_log(record: bytes, index: int) -> "PredictionLog":
    from google.protobuf.message import DecodeError
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    try:
        return PredictionLog.FromString(record)
    except DecodeError as error:
        raise SamplesUnfit(f"warm-up record {index} is not a PredictionLog") from error


def is_prediction(log: "PredictionLog") -> bool:
    return bool(log.WhichOneof("log_type") == "predict_log")


def signature_name(request: "PredictRequest") -> str:
    return request.model_spec.signature_name or _DEFAULT_SIGNATURE


def read_request(
    request: "PredictRequest", signatures: Mapping[str, Signature], what: str
) -> tuple[Signature, Tensors]:
    import tensorflow as tf

    name = signature_name(request)
    if name not in signatures:
        raise SamplesUnfit(f"{what} is for signature {name!r}, but the model has no such signature")
    signature = signatures[name]
    if set(request.inputs) != set(signature.inputs):
        raise SamplesUnfit(f"{what} has inputs {sorted(request.inputs)}, but {name} takes {sorted(signature.inputs)}")
    try:
        inputs = {alias: tf.make_ndarray(tensor) for alias, tensor in request.inputs.items()}
    except (TypeError, ValueError) as error:
        raise SamplesUnfit(f"cannot read {what}: {reason_of(error)}") from error
    for alias, value in inputs.items():
        if (came := tf.dtypes.as_dtype(request.inputs[alias].dtype).name) != signature.inputs[alias].dtype:
            raise SamplesUnfit(
                f"{what}: input {alias!r} is {came}{list(value.shape)} instead of {signature.inputs[alias]}"
            )
    return signature, inputs
