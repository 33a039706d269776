"""BatchingOptions: how requests for one signature share batches. Imports nothing heavy: settings are checked by it."""

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuserve_server.core.errors import InvalidArgument

if TYPE_CHECKING:
    from tpuserve_server.core.sequences import Sequences


class BatchingMode(enum.StrEnum):
    """When a batch that is not full leaves."""

    GREEDY = "greedy"
    """As soon as the device is free."""
    TIMEOUT = "timeout"
    """When the device is free and its oldest request has waited long enough: TensorFlow Serving's rule."""
    OBJECTIVE = "objective"
    """As soon as the device is free, with as many rows as a latency objective leaves; who would be late is refused."""


class PaddingPolicy(enum.StrEnum):
    """Into which of the allowed sizes the rows that wait are put (TensorFlow's BatchFunction, batch_padding_policy)."""

    PAD_UP = "pad_up"
    """The smallest that holds them all."""
    BATCH_DOWN = "batch_down"
    """The largest that they fill; what does not fit waits for the next batch."""
    MIN_COST = "min_cost"
    """Of all sizes the one that costs least for each row that runs."""


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """`percentile` % of the requests are answered within `latency_s` of their arrival.

    Raises:
        InvalidArgument: nobody can keep that, or it promises nothing.
    """

    latency_s: float
    percentile: float = 99.0

    def __post_init__(self) -> None:
        if not 0 < self.latency_s < math.inf:
            raise InvalidArgument(
                f"latency_objective_ms must be positive; was {self.latency_s * 1000:g}: give the milliseconds within "
                "which requests are to be answered, such as 20"
            )
        if not 50 < self.percentile < 100:
            raise InvalidArgument(
                f"latency_percentile must be above 50 and below 100; was {self.percentile:g}: give the share of "
                "requests for which the objective is to hold, such as 99"
            )


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How requests for one signature share batches. Sizes count rows, not requests.

    `max_batch_size` bounds a request, and a batch too unless `max_execution_batch_size` says that batches are smaller:
    then a request that does not fit the open batch is split over several. Without `allowed_batch_sizes` a batch has any
    size and is never padded. A batch that is not full waits `timeout_s` for more rows, counted from its oldest request;
    0 lets it leave as soon as the device is free. `pad_variable_length_inputs`: rows of different shapes share a batch,
    the smaller ones padded to the largest (TensorFlow Serving, batching/batching_options.h). With `sequence_buckets`
    they are padded to the next of these lengths, so that rows of few shapes ever reach the device.

    With an `objective` there is no timeout: no batch waits, and how many rows leave follows from it.

    Raises:
        InvalidArgument: sizes are not positive and ascending, or do not fit together, or the timeout is negative, or
            there are both a timeout and an objective, or two ways to pad.
    """

    max_batch_size: int
    allowed_batch_sizes: tuple[int, ...] = ()
    timeout_s: float = 0.0
    max_execution_batch_size: int | None = None
    pad_variable_length_inputs: bool = False
    objective: LatencyObjective | None = None
    padding_policy: PaddingPolicy = PaddingPolicy.MIN_COST
    sequence_buckets: tuple[int, ...] = ()
    # What `sequence_buckets` comes to for one signature, worked out when it is loaded.
    sequences: "Sequences | None" = None
    # What a batch can be padded to: the allowed sizes up to the one that holds the largest batch.
    buckets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.max_batch_size <= 0:
            raise InvalidArgument(f"max_batch_size must be positive; was {self.max_batch_size}")
        if self.timeout_s < 0:
            raise InvalidArgument(f"batch_timeout_micros must be non-negative; was {round(self.timeout_s * 1e6)}")
        choose_mode(waits=self.timeout_s > 0, has_objective=self.objective is not None)
        self._check_execution_size()
        self._check_allowed_sizes()
        check_ascending("sequence_buckets", self.sequence_buckets)
        if self.sequence_buckets and self.pad_variable_length_inputs:
            raise InvalidArgument(
                "sequence_buckets and pad_variable_length_inputs pad the same inputs otherwise: give one of them"
            )
        smaller = [size for size in self.allowed_batch_sizes if size < self.max_rows]
        object.__setattr__(self, "buckets", self.allowed_batch_sizes[: len(smaller) + 1])

    @property
    def mode(self) -> BatchingMode:
        """What decides when a batch leaves."""
        return choose_mode(waits=self.timeout_s > 0, has_objective=self.objective is not None)

    @property
    def splits(self) -> bool:
        """Whether a request may be run in parts."""
        return self.max_execution_batch_size is not None

    @property
    def max_rows(self) -> int:
        """Most rows of a batch, padding left out."""
        return self.max_batch_size if self.max_execution_batch_size is None else self.max_execution_batch_size

    def _check_execution_size(self) -> None:
        size = self.max_execution_batch_size
        if size is None:
            return
        if size <= 0:
            raise InvalidArgument(f"max_execution_batch_size must be positive; was {size}")
        if size > self.max_batch_size:
            raise InvalidArgument(
                "When enable_large_batch_splitting is true, max_batch_size must be greater than or equal to "
                f"max_execution_batch_size; they were {self.max_batch_size} and {size}"
            )

    def _check_allowed_sizes(self) -> None:
        sizes = self.allowed_batch_sizes
        if not sizes:
            return
        check_ascending("allowed_batch_sizes", sizes)
        if sizes[-1] != self.max_batch_size:
            raise InvalidArgument(
                "Last entry in allowed_batch_sizes must match max_batch_size; "
                f"last entry was {sizes[-1]}; expected {self.max_batch_size}"
            )


def choose_mode(*, waits: bool, has_objective: bool) -> BatchingMode:
    """What follows from a timeout above 0, and from an objective; InvalidArgument where there are both."""
    if waits and has_objective:
        raise InvalidArgument("latency_objective_ms and batch_timeout_micros contradict each other: give one of them")
    if has_objective:
        return BatchingMode.OBJECTIVE
    return BatchingMode.TIMEOUT if waits else BatchingMode.GREEDY


def check_ascending(name: str, sizes: tuple[int, ...]) -> None:
    """InvalidArgument unless every size is positive and larger than the one before it."""
    if sizes and (sizes[0] <= 0 or list(sizes) != sorted(set(sizes))):
        raise InvalidArgument(f"{name} entries must be positive and in ascending order; were {list(sizes)}")
