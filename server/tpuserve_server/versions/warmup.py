"""Warm-up: runs a version's buckets before it is AVAILABLE, so that no request waits for a first run."""

import functools
import itertools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from tpuserve_formats import tf_record
from tpuserve_formats.messages.official import (
    ClassificationRequest,
    MultiInferenceRequest,
    PredictionLog,
    PredictRequest,
)
from tpuserve_server.core.batching.arrays import choose_bucket, empty_batch, fill_batch, fill_padded, split_rows
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.sequences import Sequences
from tpuserve_server.core.terms.deadline import limit_runs
from tpuserve_server.core.terms.errors import (
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unimplemented,
)
from tpuserve_server.core.terms.servable import Servable
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, Signature, Tensors
from tpuserve_server.core.terms.validation import (
    check_names,
    choose_outputs,
    count_rows,
    matches_shapes,
    with_defaults,
)
from tpuserve_server.versions.made_up_rows import RUN_LIMIT_S, Tried, try_signatures
from tpuserve_server.versions.run_timer import RunTimer, blank_rows
from tpuserve_server.versions.warmup_options import WarmupOptions
from tpuserve_server.wire.example_methods import (
    CLASSIFY,
    EXAMPLES_INPUT,
    REGRESS,
    ExampleRun,
    InferenceMethod,
    find_run,
    find_task_runs,
)
from tpuserve_server.wire.example_request import parse_recorded_multi_inference, parse_recorded_request
from tpuserve_server.wire.predict_proto import decode_tensor

# Recorded requests of a version, decoded from a TFRecord of PredictionLogs.
#
# The rules are those of tensorflow_serving/servables/tensorflow/saved_model_warmup_util.cc and saved_model_warmup.cc.

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


_log = logging.getLogger(__name__)

# Maximum number of shapes of one signature. If several sequence lengths give more, clients request few of them.
_MOST_SHAPES = 512
# Maximum number of signatures that an error names.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class WarmupCount:
    """Number of records that ran, and number of runs of the model, including those of blank and made-up rows.

    `too_large` is the number of records that did not run, because live requests with so many rows are refused.
    """

    records: int = 0
    runs: int = 0
    too_large: int = 0
    tried: Tried = field(default_factory=Tried)


def warm_up(
    servable: Servable,
    version_path: Path,
    batching: Mapping[str, BatchingOptions],
    options: WarmupOptions,
    timer: RunTimer | None = None,
) -> WarmupCount:
    """Run the recorded requests, then each bucket with recorded or blank rows. Blocks.

    A recorded request with more rows than `batching` allows does not run, but its first row warms the buckets. The
    records may be older than the server's max_batch_size.

    A `timer` runs the buckets a few more times. These runs are not counted. Without records, signatures that have not
    completed a run get a made-up row.

    Raises:
        ServingError: a recorded request failed, with its own code. Failures of blank rows are ignored, because a model
            may not accept such rows.
        FailedPrecondition: no signature can answer.
    """
    records = runs = too_large = 0
    samples: dict[str, Tensors] = {}
    # Shapes that a recorded request has run. They are not run again, which saves time for a slow model.
    replayed: set[Hashable] = set()
    for index, record in enumerate(read_records(version_path)):
        try:
            recorded = decode_record(record, servable.signatures, check_method_names=options.check_method_names)
            fitting = [run for run in recorded if _fits(run, batching.get(run.signature.name))]
            for run in fitting * max(options.iterations, 1):
                for inputs in _replay(servable, run, batching.get(run.signature.name)):
                    replayed.add(_shape(run.signature, inputs, run.output_names))
                    runs += 1
        except ServingError as error:
            raise type(error)(f"Warm-up record {index} in {RECORDS_PATH}: {error.message}") from error
        for run in recorded:
            samples.setdefault(run.signature.name, with_defaults(run.signature, run.inputs))
        is_too_large = len(fitting) < len(recorded)
        records, too_large = records + (not is_too_large), too_large + is_too_large
    completed = set[str]()
    for name, sizes in batching.items():
        signature = servable.signatures[name]
        sample, sequences = _find_sample(samples.get(name), signature), sizes.sequences
        for bucket, lengths in _shapes(sizes):
            if sample is None:
                inputs = blank_rows(signature, bucket, sequences, lengths)
            else:
                inputs = _resize(sample, bucket, sequences, lengths)
            as_recorded = sample is not None and _is_as_recorded(sample, sequences, lengths)
            run_bucket = functools.partial(_run, servable, signature, inputs)
            if _shape(signature, inputs, tuple(signature.outputs)) not in replayed:
                with limit_runs(0 if as_recorded else RUN_LIMIT_S):
                    refusal = _try(run_bucket, as_recorded)
                if isinstance(refusal, DeadlineExceeded):
                    break  # other sizes would take as long
                if refusal is not None:
                    continue
                runs += 1
                completed.add(name)
            if timer is not None:
                _try(functools.partial(timer.time, run_bucket, name, bucket, lengths), as_recorded)
    if records or too_large or not options.makes_up_rows:
        return WarmupCount(records, runs, too_large)
    tried = try_signatures(servable, [name for name in servable.signatures if name not in completed])
    if tried.broken and tried.broken.keys() == servable.signatures.keys():
        raise FailedPrecondition(_no_answer(tried.broken))
    return WarmupCount(records, runs + tried.runs, tried=tried)


def _no_answer(broken: Mapping[str, str]) -> str:
    shown = [f"signature '{name}' fails: {reason}" for name, reason in itertools.islice(broken.items(), _MOST_NAMED)]
    more = [f"{len(broken) - len(shown)} more fail"] if len(broken) > len(shown) else []
    return (
        f"the version cannot answer any request. {'; '.join([*shown, *more])}. Export the model again. The server's "
        "flag --lenient_loads serves such versions, as TensorFlow Serving does"
    )


def _shapes(batching: BatchingOptions) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Return the rows and lengths of every possible batch."""
    # Without buckets, batches are not padded and no size is likelier than another. Live batches show their costs.
    sizes = batching.buckets or (1,)
    lengths = [()] if batching.sequences is None else list(batching.sequences.combinations())
    if len(sizes) * len(lengths) > _MOST_SHAPES:
        _log.warning(
            "Warm-up runs only the batch shapes with sequences of equal length, because there are %d shapes",
            len(sizes) * len(lengths),
        )
        lengths = [combination for combination in lengths if len(set(combination)) == 1]
    return itertools.product(sizes, lengths)


def _shape(signature: Signature, inputs: Tensors, output_names: Sequence[str]) -> Hashable:
    """Return the combination that a device compiles for."""
    return (signature.name, tuple(output_names), *[inputs[name].shape for name in sorted(inputs)])


def _replay(servable: Servable, run: RecordedRun, batching: BatchingOptions | None) -> Iterator[Tensors]:
    """Run a recorded request as the batcher runs a single one: padded to a bucket, and split if necessary.

    Yields the inputs of each completed run.
    """
    if batching is None or not _is_batched(run):
        inputs = with_defaults(run.signature, run.inputs)
        outputs = servable.dispatch(run.signature.name, inputs, run.output_names).result()
        _check(run, run.inputs, outputs)
        yield inputs
        return
    for part, rows in _parts(run.inputs, batching):
        bucket = choose_bucket(rows, batching.buckets)
        padded = _pad(part, rows, bucket, batching.sequences)
        outputs = servable.dispatch(run.signature.name, padded, run.output_names).result()
        _check(run, part, split_rows(outputs, [rows], bucket)[0])
        yield padded


def _is_batched(run: RecordedRun) -> bool:
    """Return whether a batched signature runs these inputs in a batch."""
    is_complete = len(run.inputs) == len(run.signature.inputs)
    return is_complete and matches_shapes(run.signature, run.inputs) and count_rows(run.inputs) > 0


def _fits(run: RecordedRun, batching: BatchingOptions | None) -> bool:
    """Return whether the server accepts a request with so many rows."""
    return batching is None or not _is_batched(run) or count_rows(run.inputs) <= batching.max_batch_size


def _check(run: RecordedRun, inputs: Tensors, outputs: Tensors) -> None:
    """Raise an error for outputs that cannot become a response. They would fail a request, so they fail the load."""
    if run.method is not None:
        run.method.encode(outputs, len(inputs[EXAMPLES_INPUT]))


def _parts(inputs: Tensors, batching: BatchingOptions) -> Iterator[tuple[Tensors, int]]:
    rows = count_rows(inputs)
    for start in range(0, rows, batching.max_rows):
        part = {name: array[start : start + batching.max_rows] for name, array in inputs.items()}
        yield part, min(rows - start, batching.max_rows)


def _pad(inputs: Tensors, rows: int, bucket: int, sequences: Sequences | None) -> Tensors:
    """Pad the inputs as the batcher pads a single request."""
    shapes = {name: array.shape[1:] for name, array in inputs.items()}
    if sequences is None:
        batch = empty_batch(inputs, shapes, bucket)
        fill_batch(batch, [inputs], rows)
    else:
        batch = empty_batch(inputs, sequences.row_shapes(shapes, sequences.padded_lengths(inputs)), bucket)
        fill_padded(batch, [inputs], rows, sequences.pad_values)
    return batch


def _run(servable: Servable, signature: Signature, inputs: Tensors) -> None:
    servable.dispatch(signature.name, inputs, tuple(signature.outputs)).result()


def _try(run: Callable[[], None], recorded: bool) -> ServingError | None:
    """Return the error of `run`, or None. Raises the error of a recorded request."""
    try:
        run()
    except ServingError as error:
        if recorded:
            raise
        return error.copy()
    return None


def _find_sample(sample: Tensors | None, signature: Signature) -> Tensors | None:
    """Return the sample's first row, or None if it cannot be in a batch."""
    if sample is None or not matches_shapes(signature, sample) or not all(len(array) for array in sample.values()):
        return None
    return {name: array[:1] for name, array in sample.items()}


def _is_as_recorded(sample: Tensors, sequences: Sequences | None, lengths: tuple[int, ...]) -> bool:
    """Return whether a request with this row runs at these lengths."""
    return sequences is None or sequences.padded_lengths(sample) == lengths


def _resize(sample: Tensors, rows: int, sequences: Sequences | None, lengths: tuple[int, ...]) -> Tensors:
    """Return `rows` rows like the sample's, with its sequences cropped or padded to `lengths`."""
    if sequences is None:
        return {name: np.repeat(array, rows, axis=0) for name, array in sample.items()}
    row = sequences.crop(sample, lengths)
    shapes = {name: array.shape[1:] for name, array in row.items()}
    batch = empty_batch(row, sequences.row_shapes(shapes, lengths), rows)
    fill_padded(batch, [row], 1, sequences.pad_values)
    return batch
