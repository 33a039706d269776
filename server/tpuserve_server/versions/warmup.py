"""Warm-up: every bucket of every signature runs once before a version is AVAILABLE, so that no request is the first."""

import functools
import itertools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.request_size import too_many_rows
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.padding import choose_bucket, empty_batch, fill_batch, fill_padded, split_rows
from tpuserve_server.core.sequences import Sequences
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import Signature, Tensors
from tpuserve_server.core.validation import count_rows, matches_shapes, with_defaults
from tpuserve_server.versions.blank_rows import blank_rows
from tpuserve_server.versions.run_timer import RunTimer
from tpuserve_server.versions.warmup_options import WarmupOptions
from tpuserve_server.versions.warmup_records import RECORDS_PATH, RecordedRun, decode_record, read_records
from tpuserve_server.wire.inference_method import EXAMPLES_INPUT

_log = logging.getLogger(__name__)

# Of one signature. Where sequences of several lengths make more, few of them will be asked for.
_MOST_SHAPES = 512


@dataclass(frozen=True, slots=True)
class WarmupCount:
    """How many records were read, and how many runs of the model there were, made-up ones among them."""

    records: int = 0
    runs: int = 0


def warm_up(
    servable: Servable,
    version_path: Path,
    batching: Mapping[str, BatchingOptions],
    options: WarmupOptions,
    timer: RunTimer | None = None,
) -> WarmupCount:
    """Run the recorded requests, then each bucket with recorded or made-up rows; blocks.

    A `timer` runs the buckets a few times more, which are not counted.

    Raises:
        ServingError: a recorded request failed, with its own code. Made-up rows may be nonsense to a model: their
            failure is no error.
    """
    records = runs = 0
    samples: dict[str, Tensors] = {}
    # A slow model's recorded requests are what it takes long for: what one of them has run is not run again.
    replayed: set[Hashable] = set()
    for record in read_records(version_path):
        try:
            recorded = decode_record(record, servable.signatures, check_method_names=options.check_method_names)
            for run in recorded * max(options.iterations, 1):
                for inputs in _replay(servable, run, batching.get(run.signature.name)):
                    replayed.add(_shape(run.signature, inputs, run.output_names))
                    runs += 1
        except ServingError as error:
            raise type(error)(f"Warm-up record {records} in {RECORDS_PATH}: {error.message}") from error
        for run in recorded:
            samples.setdefault(run.signature.name, with_defaults(run.signature, run.inputs))
        records += 1
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
                if not _try(run_bucket, as_recorded):
                    continue
                runs += 1
            if timer is not None:
                _try(functools.partial(timer.time, run_bucket, name, bucket, lengths), as_recorded)
    return WarmupCount(records, runs)


def _shapes(batching: BatchingOptions) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Rows and lengths of every batch there can be."""
    # Without buckets nothing is padded, and no size is more likely than another; what they cost shows when they run.
    sizes = batching.buckets or (1,)
    lengths = [()] if batching.sequences is None else list(batching.sequences.combinations())
    if len(sizes) * len(lengths) > _MOST_SHAPES:
        _log.warning(
            "Of %d shapes of batches only those are warmed whose sequences are all of one length",
            len(sizes) * len(lengths),
        )
        lengths = [combination for combination in lengths if len(set(combination)) == 1]
    return itertools.product(sizes, lengths)


def _shape(signature: Signature, inputs: Tensors, output_names: Sequence[str]) -> Hashable:
    """What a device compiles for."""
    return (signature.name, tuple(output_names), *[inputs[name].shape for name in sorted(inputs)])


def _replay(servable: Servable, run: RecordedRun, batching: BatchingOptions | None) -> Iterator[Tensors]:
    """Run a recorded request as the batcher runs a lone one: padded to a bucket, in parts if it is split.

    Yields the inputs of each run that has ended.
    """
    complete = len(run.inputs) == len(run.signature.inputs)
    if batching is None or not complete or not matches_shapes(run.signature, run.inputs) or not count_rows(run.inputs):
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


def _check(run: RecordedRun, inputs: Tensors, outputs: Tensors) -> None:
    """Outputs that no answer can be made of fail a request, and so the load."""
    if run.method is not None:
        run.method.encode(outputs, len(inputs[EXAMPLES_INPUT]))


def _parts(inputs: Tensors, batching: BatchingOptions) -> Iterator[tuple[Tensors, int]]:
    rows = count_rows(inputs)
    if rows > batching.max_batch_size:
        raise too_many_rows(rows, batching.max_batch_size, splits=batching.splits)
    for start in range(0, rows, batching.max_rows):
        part = {name: array[start : start + batching.max_rows] for name, array in inputs.items()}
        yield part, min(rows - start, batching.max_rows)


def _pad(inputs: Tensors, rows: int, bucket: int, sequences: Sequences | None) -> Tensors:
    """As the batcher pads a request that is alone."""
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


def _try(run: Callable[[], None], recorded: bool) -> bool:
    """Whether it succeeds."""
    try:
        run()
    except ServingError:
        if recorded:
            raise
        return False
    return True


def _find_sample(sample: Tensors | None, signature: Signature) -> Tensors | None:
    """The sample's first row, where it can be made one of a batch."""
    if sample is None or not matches_shapes(signature, sample) or not all(len(array) for array in sample.values()):
        return None
    return {name: array[:1] for name, array in sample.items()}


def _is_as_recorded(sample: Tensors, sequences: Sequences | None, lengths: tuple[int, ...]) -> bool:
    """Whether a request with this row runs at these lengths."""
    return sequences is None or sequences.padded_lengths(sample) == lengths


def _resize(sample: Tensors, rows: int, sequences: Sequences | None, lengths: tuple[int, ...]) -> Tensors:
    """`rows` rows like the sample's; its sequences cut or padded to `lengths`."""
    if sequences is None:
        return {name: np.repeat(array, rows, axis=0) for name, array in sample.items()}
    row = sequences.crop(sample, lengths)
    shapes = {name: array.shape[1:] for name, array in row.items()}
    batch = empty_batch(row, sequences.row_shapes(shapes, lengths), rows)
    fill_padded(batch, [row], 1, sequences.pad_values)
    return batch
