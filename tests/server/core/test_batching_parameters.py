from typing import Any

import pytest

from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.batching_parameters import BatchingParameters
from tpuserve_server.core.errors import InvalidArgument

Said = BatchingParameters


@pytest.mark.parametrize(
    ("said", "exported", "options"),
    [
        (Said(), (), BatchingOptions(1000)),
        (Said(), (1, 4), BatchingOptions(4, (1, 4))),
        (Said(max_batch_size=16), (), BatchingOptions(16)),
        (Said(max_batch_size=2), (1, 4), BatchingOptions(2, (1, 2))),
        (Said(max_batch_size=16), (1, 4), BatchingOptions(16, (1, 4, 16))),
        (Said(allowed_batch_sizes=(2, 8)), (1, 4), BatchingOptions(8, (2, 8))),
        (Said(max_batch_size=8, allowed_batch_sizes=(8,)), (1, 4), BatchingOptions(8, (8,))),
        (Said(batch_timeout_micros=1500), (), BatchingOptions(1000, timeout_s=0.0015)),
        (Said(pad_variable_length_inputs=True), (), BatchingOptions(1000, pad_variable_length_inputs=True)),
        (Said(enable_large_batch_splitting=True), (), BatchingOptions(1000, max_execution_batch_size=1000)),
        # Which size a batch has does not matter where nothing is split, as in TensorFlow Serving.
        (Said(max_batch_size=8, max_execution_batch_size=99), (), BatchingOptions(8)),
    ],
)
def test_what_is_said_and_what_was_exported_make_options(
    said: BatchingParameters, exported: tuple[int, ...], options: BatchingOptions
) -> None:
    assert said.options(exported) == options


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_batch_threads": 0}, "num_batch_threads must be positive; was 0"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros must be non-negative; was -1"),
        ({"max_enqueued_batches": -1}, "max_enqueued_batches must be positive; was -1"),
        (
            {"max_enqueued_batches": 0, "enable_large_batch_splitting": True},
            "max_enqueued_batches must be positive; was 0",
        ),
        ({"max_batch_size": 0}, "max_batch_size must be positive; was 0"),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": (1, 4)},
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8",
        ),
        ({"allowed_batch_sizes": (4, 1)}, "ascending"),
        (
            {"max_batch_size": 8, "enable_large_batch_splitting": True, "max_execution_batch_size": 16},
            "max_batch_size must be greater than or equal to max_execution_batch_size; they were 8 and 16",
        ),
        (
            {"max_batch_size": 8, "enable_large_batch_splitting": True, "max_execution_batch_size": 0},
            "max_execution_batch_size must be positive",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        BatchingParameters(**fields)


def test_no_place_in_the_queue_means_one_where_nothing_is_split() -> None:
    assert BatchingParameters(max_enqueued_batches=0).queue_length == 1
    assert BatchingParameters(max_enqueued_batches=7).queue_length == 7
    assert BatchingParameters().queue_length == 512


def test_what_is_not_said_comes_from_the_other() -> None:
    mine = BatchingParameters(batch_timeout_micros=0, enable_large_batch_splitting=False)
    other = BatchingParameters(
        max_batch_size=8,
        allowed_batch_sizes=(2, 8),
        batch_timeout_micros=10,
        max_enqueued_batches=3,
        num_batch_threads=2,
        enable_large_batch_splitting=True,
        pad_variable_length_inputs=True,
    )
    assert mine.over(other) == BatchingParameters(
        max_batch_size=8,
        allowed_batch_sizes=(2, 8),
        batch_timeout_micros=0,
        max_enqueued_batches=3,
        num_batch_threads=2,
        enable_large_batch_splitting=False,
        pad_variable_length_inputs=True,
    )


def test_sizes_come_together() -> None:
    file = BatchingParameters(max_batch_size=8, allowed_batch_sizes=(2, 8))
    assert BatchingParameters(max_batch_size=4).over(file).options() == BatchingOptions(4)
    assert BatchingParameters(allowed_batch_sizes=(3,)).over(file).options() == BatchingOptions(3, (3,))
    parts = BatchingParameters(max_batch_size=8, enable_large_batch_splitting=True, max_execution_batch_size=2)
    split = BatchingOptions(1, max_execution_batch_size=1)
    assert BatchingParameters(max_batch_size=1).over(parts).options() == split
    assert BatchingParameters(num_batch_threads=1).over(parts).options() == parts.options()
    with pytest.raises(InvalidArgument, match="they were 8 and 9"):
        BatchingParameters(max_execution_batch_size=9).over(parts)


def test_a_batch_is_padded_to_no_more_than_it_takes_to_hold_what_is_run() -> None:
    assert BatchingOptions(8, (2, 4, 8), max_execution_batch_size=3).buckets == (2, 4)
    assert BatchingOptions(8, (2, 4, 8), max_execution_batch_size=4).buckets == (2, 4)
    assert BatchingOptions(8, (8,), max_execution_batch_size=1).buckets == (8,)
    assert BatchingOptions(8, (2, 4, 8)).buckets == (2, 4, 8)
    assert BatchingOptions(8).buckets == ()


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="batch_timeout_micros must be non-negative; was -3"):
        BatchingOptions(8, timeout_s=-3e-6)
