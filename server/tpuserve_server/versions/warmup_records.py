"""Recorded requests of a version, decoded from a TFRecord of PredictionLogs.

The rules are those of tensorflow_serving/servables/tensorflow/saved_model_warmup_util.cc and saved_model_warmup.cc.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from tpuserve_formats import tf_record
from tpuserve_formats.messages.official import (
    ClassificationRequest,
    MultiInferenceRequest,
    PredictionLog,
    PredictRequest,
)
from tpuserve_server.core.errors import DataLoss, FailedPrecondition, InvalidArgument, Unimplemented
from tpuserve_server.core.types import DEFAULT_SIGNATURE_NAME, Signature, Tensors
from tpuserve_server.core.validation import check_names, choose_outputs
from tpuserve_server.wire.example_request import parse_recorded_multi_inference, parse_recorded_request
from tpuserve_server.wire.example_run import ExampleRun, find_run, find_task_runs
from tpuserve_server.wire.inference_method import CLASSIFY, EXAMPLES_INPUT, REGRESS, InferenceMethod
from tpuserve_server.wire.tensor_proto import decode_tensor

RECORDS_PATH = Path("assets.extra", "tf_serving_warmup_requests")

# TensorFlow Serving's limit. More records are an error.
MAX_RECORDS = 1000
# A record is read into memory.
_MAX_BYTES = 2**31


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Run of one signature. `method` encodes the outputs, which checks them; None for Predict."""

    signature: Signature
    inputs: Tensors
    output_names: tuple[str, ...]
    method: InferenceMethod | None = None


def read_records(version_path: Path) -> Iterator[bytes]:
    """Yield each record's bytes. A version without recorded requests yields none.

    Raises:
        InvalidArgument: there are more than MAX_RECORDS, or the file has more than 2 GiB.
        DataLoss: the file is truncated, damaged or not a TFRecord.
    """
    path = version_path / RECORDS_PATH
    if not path.exists():
        return
    if (size_bytes := path.stat().st_size) > _MAX_BYTES:
        raise InvalidArgument(f"{RECORDS_PATH} has {size_bytes} bytes; the limit is {_MAX_BYTES}")
    try:
        with path.open("rb") as file:
            for index, record in enumerate(tf_record.read_records(file)):
                if index >= MAX_RECORDS:
                    raise InvalidArgument(
                        f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {RECORDS_PATH}"
                    )
                yield record
    except (OSError, ValueError) as error:
        raise DataLoss(
            f"{RECORDS_PATH} cannot be read. Please verify your warmup data is in TFRecord format."
        ) from error


def decode_record(record: bytes, signatures: Mapping[str, Signature], *, check_method_names: bool) -> list[RecordedRun]:
    """Return the runs of a recorded request: none for a log without request, several for MultiInference.

    Raises:
        ServingError: the server would refuse the request. Unimplemented for a kind that the server cannot replay.
    """
    try:
        log = PredictionLog.FromString(record)
    except DecodeError:
        raise InvalidArgument("Failed to parse warmup record") from None
    match log.WhichOneof("log_type"):
        case "predict_log":
            return [_predict(log.predict_log.request, signatures)]
        case "classify_log":
            return _infer(CLASSIFY, log.classify_log.request, signatures, check_method_names)
        case "regress_log":
            return _infer(REGRESS, log.regress_log.request, signatures, check_method_names)
        case "multi_inference_log":
            return _multi_inference(log.multi_inference_log.request, signatures, check_method_names)
        case None:
            return []
        case kind:
            raise Unimplemented(f"Unsupported log_type for warmup: {kind}")


def _predict(request: PredictRequest, signatures: Mapping[str, Signature]) -> RecordedRun:
    name = request.model_spec.signature_name or DEFAULT_SIGNATURE_NAME
    signature = signatures.get(name)
    if signature is None:
        raise FailedPrecondition(f'Serving signature key "{name}" not found.')
    check_names(signature, request.inputs)
    inputs = {alias: decode_tensor(alias, tensor) for alias, tensor in request.inputs.items()}
    return RecordedRun(signature, inputs, choose_outputs(signature, request.output_filter))


def _infer(
    method: InferenceMethod,
    request: ClassificationRequest,
    signatures: Mapping[str, Signature],
    check_method_name: bool,
) -> list[RecordedRun]:
    parsed = parse_recorded_request(request.SerializeToString(), method.request_name)
    run = find_run(signatures, method, parsed.signature_name, check_method_name=check_method_name)
    return [_recorded(run, {EXAMPLES_INPUT: parsed.examples()})]


def _multi_inference(
    request: MultiInferenceRequest, signatures: Mapping[str, Signature], check: bool
) -> list[RecordedRun]:
    parsed = parse_recorded_multi_inference(request.SerializeToString())
    runs = find_task_runs(signatures, parsed.tasks, check_method_names=check)
    inputs = {EXAMPLES_INPUT: parsed.examples()}
    return [_recorded(run, inputs) for run in runs]


def _recorded(run: ExampleRun, inputs: Tensors) -> RecordedRun:
    return RecordedRun(run.signature, inputs, run.output_names, run.method)
