import math
from typing import Any

import pytest

from tpuserve_server.core.batching.parameters import (
    BatchingMode,
    BatchingOptions,
    BatchingParameters,
    LatencyObjective,
    PaddingPolicy,
)
from tpuserve_server.core.terms.errors import InvalidArgument

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
        # TensorFlow Serving's waits imply its padding.
        (
            Said(batch_timeout_micros=1500),
            (),
            BatchingOptions(1000, timeout_s=0.0015, padding_policy=PaddingPolicy.PAD_UP),
        ),
        (
            Said(batch_timeout_micros=1500, batch_padding_policy=PaddingPolicy.MIN_COST),
            (),
            BatchingOptions(1000, timeout_s=0.0015),
        ),
        (Said(pad_variable_length_inputs=True), (), BatchingOptions(1000, pad_variable_length_inputs=True)),
        (Said(enable_large_batch_splitting=True), (), BatchingOptions(1000, max_execution_batch_size=1000)),
        (
            Said(latency_objective_ms=20, batch_padding_policy=PaddingPolicy.PAD_UP, sequence_buckets=(16, 64)),
            (1, 4),
            BatchingOptions(
                4,
                (1, 4),
                objective=LatencyObjective(0.02, 99),
                padding_policy=PaddingPolicy.PAD_UP,
                sequence_buckets=(16, 64),
            ),
        ),
        # An objective needs sizes with known costs.
        (
            Said(latency_objective_ms=20, latency_percentile=95, max_batch_size=16),
            (),
            BatchingOptions(16, (1, 2, 4, 8, 16), objective=LatencyObjective(0.02, 95)),
        ),
        (
            Said(latency_objective_ms=20, max_batch_size=5),
            (),
            BatchingOptions(5, (1, 2, 4, 5), objective=LatencyObjective(0.02)),
        ),
        (
            Said(latency_objective_ms=20, max_batch_size=1),
            (),
            BatchingOptions(1, (1,), objective=LatencyObjective(0.02)),
        ),
        (
            Said(latency_objective_ms=20),
            (),
            BatchingOptions(1000, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000), objective=LatencyObjective(0.02)),
        ),
        # Without splits any size is allowed, like in TensorFlow Serving.
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
        (
            {"latency_objective_ms": 0},
            "latency_objective_ms must be positive; was 0: set the latency objective .* such as 20",
        ),
        ({"latency_objective_ms": -5}, "latency_objective_ms must be positive; was -5"),
        ({"latency_objective_ms": math.inf}, "latency_objective_ms must be positive; was inf"),
        ({"latency_objective_ms": math.nan}, "latency_objective_ms must be positive; was nan"),
        ({"latency_percentile": 50}, "latency_percentile must be above 50 and below 100; was 50: .* such as 99"),
        ({"latency_objective_ms": 20, "latency_percentile": 100}, "above 50 and below 100; was 100"),
        ({"latency_objective_ms": 20, "batch_timeout_micros": 1}, "contradict each other: set only one of them"),
        ({"batching_mode": BatchingMode.OBJECTIVE}, "objective requires latency_objective_ms, such as 20"),
        (
            {"batching_mode": BatchingMode.OBJECTIVE, "batch_timeout_micros": 9},
            "objective requires latency_objective_ms",
        ),
        ({"batching_mode": BatchingMode.TIMEOUT}, "timeout requires batch_timeout_micros above 0"),
        ({"batching_mode": BatchingMode.TIMEOUT, "latency_objective_ms": 9}, "and no latency_objective_ms"),
        ({"batching_mode": BatchingMode.GREEDY, "batch_timeout_micros": 9}, "greedy does not wait: omit"),
        ({"sequence_buckets": (64, 16)}, "sequence_buckets entries must be positive and in ascending order"),
        ({"sequence_buckets": (0, 16)}, "sequence_buckets entries must be positive"),
        ({"low_priority_max_enqueued_batches": 0}, "low_priority_max_enqueued_batches must be positive; was 0"),
        ({"scheduling_weight": 0}, "scheduling_weight must be positive; was 0: the default is 1"),
        ({"scheduling_weight": math.nan}, "scheduling_weight must be positive; was nan"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        BatchingParameters(**fields)


def test_no_place_in_the_queue_means_one_where_nothing_is_split() -> None:
    assert BatchingParameters(max_enqueued_batches=0).queue_length == 1
    assert BatchingParameters(max_enqueued_batches=7).queue_length == 7
    assert BatchingParameters().queue_length == 512


def test_low_priority_has_as_many_places_where_nobody_says_otherwise() -> None:
    assert BatchingParameters(max_enqueued_batches=7).low_priority_queue_length == 7
    assert BatchingParameters(low_priority_max_enqueued_batches=3).low_priority_queue_length == 3


def test_models_have_equal_weight_where_nobody_says_otherwise() -> None:
    assert BatchingParameters().weight == 1
    assert BatchingParameters(scheduling_weight=2.5).weight == 2.5


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


@pytest.mark.parametrize(
    ("mine", "mode"),
    [
        (Said(), BatchingMode.OBJECTIVE),
        (Said(latency_percentile=95), BatchingMode.OBJECTIVE),
        (Said(batch_timeout_micros=0), BatchingMode.GREEDY),
        (Said(batching_mode=BatchingMode.GREEDY), BatchingMode.GREEDY),
        (Said(batch_timeout_micros=10), BatchingMode.TIMEOUT),
        (Said(batching_mode=BatchingMode.TIMEOUT, batch_timeout_micros=10), BatchingMode.TIMEOUT),
    ],
)
def test_what_says_when_a_batch_leaves_comes_together(mine: BatchingParameters, mode: BatchingMode) -> None:
    other = Said(batching_mode=BatchingMode.OBJECTIVE, latency_objective_ms=20)
    assert mine.over(other).options().mode is mode


def test_a_percentile_goes_over_anothers_objective() -> None:
    said = Said(latency_percentile=95, scheduling_weight=3, sequence_buckets=(8,))
    other = Said(latency_objective_ms=20, latency_percentile=99, low_priority_max_enqueued_batches=2)
    assert said.over(other) == Said(
        latency_objective_ms=20,
        latency_percentile=95,
        low_priority_max_enqueued_batches=2,
        scheduling_weight=3,
        sequence_buckets=(8,),
    )
    assert said.over(other).options().objective == LatencyObjective(0.02, 95)


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


def test_an_objective_leaves_no_room_for_a_timeout() -> None:
    with pytest.raises(InvalidArgument, match="contradict each other"):
        BatchingOptions(8, timeout_s=1, objective=LatencyObjective(0.02))
