"""Warm-up: every bucket of every signature runs once before a version is AVAILABLE, so that no request is the first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.errors import InvalidArgument, ServingError
from tpuserve_server.core.padding import choose_bucket, split_rows
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import Array, Signature, Tensors
from tpuserve_server.core.validation import count_rows, matches_shapes, with_defaults
from tpuserve_server.versions.warmup_records import RECORDS_PATH, RecordedRun, decode_record, read_records
from tpuserve_server.wire.inference_method import EXAMPLES_INPUT


@dataclass(frozen=True, slots=True)
class WarmupOptions:
    """What the operator said: off or on, how often each record is run, whether signatures' method names are checked."""

    enabled: bool = True
    iterations: int = 1
    check_method_names: bool = False


@dataclass(frozen=True, slots=True)
class WarmupCount:
    """How many records were read, and how many runs of the model there were, made-up ones among them."""

    records: int = 0
    runs: int = 0


def warm_up(
    servable: Servable, version_path: Path, batching: Mapping[str, BatchingOptions], options: WarmupOptions
) -> WarmupCount:
    """Run the recorded requests, then each bucket with recorded or made-up rows; blocks.

    Raises:
        ServingError: a recorded request failed, with its own code. Made-up rows may be nonsense to a model: their
            failure is no error.
    """
    records = runs = 0
    samples: dict[str, Tensors] = {}
    for record in read_records(version_path):
        try:
            recorded = decode_record(record, servable.signatures, check_method_names=options.check_method_names)
            for run in recorded * options.iterations:
                runs += _replay(servable, run, batching.get(run.signature.name))
        except ServingError as error:
            raise type(error)(f"Warm-up record {records} in {RECORDS_PATH}: {error.message}") from error
        for run in recorded:
            samples.setdefault(run.signature.name, with_defaults(run.signature, run.inputs))
        records += 1
    for name, sizes in batching.items():
        signature = servable.signatures[name]
        # Without buckets nothing is padded, and no size is more likely than another.
        for bucket in sizes.buckets or (1,):
            inputs = _resize(samples.get(name), signature, bucket)
            runs += _run_bucket(servable, signature, inputs, name in samples)
    return WarmupCount(records, runs)


def _replay(servable: Servable, run: RecordedRun, batching: BatchingOptions | None) -> int:
    """Run a recorded request as the batcher runs a lone one: padded to a bucket, in parts if it is split."""
    complete = len(run.inputs) == len(run.signature.inputs)
    if batching is None or not complete or not matches_shapes(run.signature, run.inputs) or not count_rows(run.inputs):
        inputs = with_defaults(run.signature, run.inputs)
        outputs = servable.dispatch(run.signature.name, inputs, run.output_names).result()
        _check(run, run.inputs, outputs)
        return 1
    parts = list(_parts(run.inputs, batching))
    for part, rows in parts:
        bucket = choose_bucket(rows, batching.buckets)
        padded = {name: _pad(array, bucket) for name, array in part.items()}
        outputs = servable.dispatch(run.signature.name, padded, run.output_names).result()
        _check(run, part, split_rows(outputs, [rows], bucket)[0])
    return len(parts)


def _check(run: RecordedRun, inputs: Tensors, outputs: Tensors) -> None:
    """Outputs that no answer can be made of fail a request, and so the load."""
    if run.method is not None:
        run.method.encode(outputs, len(inputs[EXAMPLES_INPUT]))


def _parts(inputs: Tensors, batching: BatchingOptions) -> Iterator[tuple[Tensors, int]]:
    rows = count_rows(inputs)
    if rows > batching.max_batch_size:
        raise InvalidArgument(f"Task size {rows} is larger than maximum input batch size {batching.max_batch_size}")
    for start in range(0, rows, batching.max_rows):
        part = {name: array[start : start + batching.max_rows] for name, array in inputs.items()}
        yield part, min(rows - start, batching.max_rows)


def _pad(array: Array, rows: int) -> Array:
    """As the batcher pads: the last row again."""
    if len(array) == rows:
        return array
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])


def _run_bucket(servable: Servable, signature: Signature, inputs: Tensors, recorded: bool) -> int:
    try:
        servable.dispatch(signature.name, inputs, tuple(signature.outputs)).result()
    except ServingError:
        if recorded:
            raise
        return 0
    return 1


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
