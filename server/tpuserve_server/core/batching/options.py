"""BatchingOptions: how requests for one signature share batches. Cheap to import, because the settings use it."""

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuserve_server.core.terms.errors import InvalidArgument, counted

if TYPE_CHECKING:
    from tpuserve_server.core.batching.sequences import Sequences


def too_many_rows(rows: int, most: int, *, splits: bool) -> InvalidArgument:
    """Return the error, with upstream's words first. `splits`: the server already runs large requests in parts."""
    hint = "" if splits else "; enable_large_batch_splitting in the server's batching parameters allows larger requests"
    return InvalidArgument(
        f"Task size {rows} is larger than maximum input batch size {most}. Send at most "
        f"{counted(most, 'row')} in a request{hint}"
    )


class BatchingMode(enum.StrEnum):
    """The rule by which a batch that is not full leaves."""

    GREEDY = "greedy"
    """As soon as the device is free."""
    TIMEOUT = "timeout"
    """When the device is free and its oldest request has waited long enough: TensorFlow Serving's rule."""
    OBJECTIVE = "objective"
    """As soon as the device is free, with as many rows as an objective allows. Late requests are refused."""


class PaddingPolicy(enum.StrEnum):
    """How waiting rows are fitted to the allowed sizes (TensorFlow's BatchFunction, batch_padding_policy)."""

    PAD_UP = "pad_up"
    """The smallest size that holds them all."""
    BATCH_DOWN = "batch_down"
    """The largest size that they fill. The remaining rows wait for the next batch."""
    MIN_COST = "min_cost"
    """The size that costs least for each row that runs."""


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """An objective to answer `percentile` % of the requests within `latency_s` seconds of their arrival.

    Raises:
        InvalidArgument: the latency is not positive and finite, or the percentile is not above 50 and below 100.
    """

    latency_s: float
    percentile: float = 99.0

    def __post_init__(self) -> None:
        if not 0 < self.latency_s < math.inf:
            raise InvalidArgument(
                f"latency_objective_ms must be positive; was {self.latency_s * 1000:g}: set the latency objective in "
                "milliseconds, such as 20"
            )
        if not 50 < self.percentile < 100:
            raise InvalidArgument(
                f"latency_percentile must be above 50 and below 100; was {self.percentile:g}: set the percentage of "
                "requests that must meet the objective, such as 99"
            )


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How requests for one signature share batches. Sizes count rows, not requests.

    `max_batch_size` limits a request, and also a batch unless `max_execution_batch_size` is smaller. With
    `max_execution_batch_size` a request that does not fit the open batch is split over several. Without
    `allowed_batch_sizes` a batch has any size and is never padded.

    A batch that is not full waits `timeout_s` for more rows, counted from its oldest request. With 0 it leaves as soon
    as the device is free. With an `objective` there is no timeout: no batch waits, and the objective decides how many
    rows leave.

    With `pad_variable_length_inputs` rows of different shapes share a batch, padded to the largest (TensorFlow Serving,
    batching/batching_options.h). With `sequence_buckets` rows are padded to the next of these lengths, so that few row
    shapes reach the device.

    Raises:
        InvalidArgument: the timeout is negative, or sizes are not positive and ascending. It is also raised for sizes
            that contradict each other, for a timeout with an objective, and for two ways to pad.

    """

    max_batch_size: int
    allowed_batch_sizes: tuple[int, ...] = ()
    timeout_s: float = 0.0
    max_execution_batch_size: int | None = None
    pad_variable_length_inputs: bool = False
    objective: LatencyObjective | None = None
    padding_policy: PaddingPolicy = PaddingPolicy.MIN_COST
    sequence_buckets: tuple[int, ...] = ()
    # The padding of one signature's sequences by `sequence_buckets`, computed when the version is loaded.
    sequences: "Sequences | None" = None
    # Sizes that a batch can be padded to: the allowed sizes up to the first that holds the largest batch.
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
                "sequence_buckets and pad_variable_length_inputs pad the same inputs in different ways: set only one "
                "of them"
            )
        smaller = [size for size in self.allowed_batch_sizes if size < self.max_rows]
        object.__setattr__(self, "buckets", self.allowed_batch_sizes[: len(smaller) + 1])

    @property
    def mode(self) -> BatchingMode:
        """The rule by which a batch leaves."""
        return choose_mode(waits=self.timeout_s > 0, has_objective=self.objective is not None)

    @property
    def splits(self) -> bool:
        """Whether a request may run in parts."""
        return self.max_execution_batch_size is not None

    @property
    def max_rows(self) -> int:
        """Largest number of rows in a batch, without padding."""
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
    """Return the mode that a timeout above 0 or an objective implies. Raises InvalidArgument if both are set."""
    if waits and has_objective:
        raise InvalidArgument(
            "latency_objective_ms and batch_timeout_micros contradict each other: set only one of them"
        )
    if has_objective:
        return BatchingMode.OBJECTIVE
    return BatchingMode.TIMEOUT if waits else BatchingMode.GREEDY


def check_ascending(name: str, sizes: tuple[int, ...]) -> None:
    """Check that every size is positive and larger than the one before it. Raises InvalidArgument."""
    if sizes and (sizes[0] <= 0 or list(sizes) != sorted(set(sizes))):
        raise InvalidArgument(f"{name} entries must be positive and in ascending order; were {list(sizes)}")
