"""BatchingParameters of an operator, before any model is known, and the BatchingOptions of a signature."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from tpuserve_server.core.terms.errors import InvalidArgument, counted
from tpuserve_server.core.terms.setting import Setting

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


DEFAULT_PERCENTILE = 99.0


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """An objective to answer `percentile` % of the requests within `latency_s` seconds of their arrival.

    Raises:
        InvalidArgument: the latency is not positive and finite, or the percentile is not above 50 and below 100.
    """

    latency_s: float
    percentile: float = DEFAULT_PERCENTILE

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


# TensorFlow Serving's default (SharedBatchScheduler::QueueOptions).
DEFAULT_MAX_BATCH_SIZE = 1000
# TensorFlow Serving's default is 10. A burst of small requests fills such a queue before a thread is free. Here the
# deadlines of requests limit the wait.
DEFAULT_MAX_ENQUEUED_BATCHES = 512

_MODE_REQUIREMENTS = {
    BatchingMode.GREEDY: "does not wait: omit batch_timeout_micros and latency_objective_ms",
    BatchingMode.TIMEOUT: "requires batch_timeout_micros above 0 and no latency_objective_ms",
    BatchingMode.OBJECTIVE: "requires latency_objective_ms, such as 20, and no batch_timeout_micros",
}

# Fields that decide when a batch leaves. `over` takes all of them from the same parameters.
_MODE_FIELDS = ("batching_mode", "batch_timeout_micros", "latency_objective_ms")


@dataclass(frozen=True, slots=True)
class BatchingParameters:
    """TensorFlow Serving's message of this name, with its meaning and rules, and more fields. None means not set.

    A batch leaves within `latency_objective_ms` of its requests' arrival, or `batch_timeout_micros` after it, or by
    default as soon as the device is free. `batching_mode` names the same choice. Alone it can only be greedy.

    `low_priority_max_enqueued_batches` limits the waiting batches of low priority. `scheduling_weight` is the model's
    share of a shared device, relative to the other models.

    Raises:
        InvalidArgument: a value breaks a rule. Rules of TensorFlow Serving keep its wording.
    """

    max_batch_size: Annotated[int | None, Setting("Batching", at_least=1)] = None
    allowed_batch_sizes: Annotated[tuple[int, ...], Setting("Batching")] = ()
    max_enqueued_batches: Annotated[int | None, Setting("Batching", at_least=1)] = None
    low_priority_max_enqueued_batches: Annotated[int | None, Setting("Batching")] = None
    num_batch_threads: Annotated[int | None, Setting("Batching")] = None
    batching_mode: Annotated[BatchingMode | None, Setting("Batching")] = None
    batch_timeout_micros: Annotated[int | None, Setting("Batching")] = None
    latency_objective_ms: Annotated[float | None, Setting("Batching")] = None
    latency_percentile: Annotated[float | None, Setting("Batching")] = None
    batch_padding_policy: Annotated[PaddingPolicy | None, Setting("Batching")] = None
    sequence_buckets: Annotated[tuple[int, ...], Setting("Batching")] = ()
    scheduling_weight: Annotated[float | None, Setting("Batching")] = None
    # Only files set these.
    enable_large_batch_splitting: bool | None = None
    max_execution_batch_size: int | None = None
    pad_variable_length_inputs: bool | None = None

    def __post_init__(self) -> None:
        if self.num_batch_threads is not None and self.num_batch_threads < 1:
            raise InvalidArgument(f"num_batch_threads must be positive; was {self.num_batch_threads}")
        if self.batch_timeout_micros is not None and self.batch_timeout_micros < 0:
            raise InvalidArgument(f"batch_timeout_micros must be non-negative; was {self.batch_timeout_micros}")
        # 0 means 1, except where large requests are split (SharedBatchScheduler::AddQueue).
        least = 1 if self.enable_large_batch_splitting else 0
        if self.max_enqueued_batches is not None and self.max_enqueued_batches < least:
            raise InvalidArgument(f"max_enqueued_batches must be positive; was {self.max_enqueued_batches}")
        self._check_own_rules()
        self._check_mode()
        if self.max_batch_size is not None or self.allowed_batch_sizes:
            self.options()

    @property
    def queue_length(self) -> int:
        """Number of batches of a signature that may wait."""
        if self.max_enqueued_batches is None:
            return DEFAULT_MAX_ENQUEUED_BATCHES
        return max(self.max_enqueued_batches, 1)

    @property
    def low_priority_queue_length(self) -> int:
        """Number of batches of low priority of a signature that may wait. Defaults to the limit for high priority."""
        limit = self.low_priority_max_enqueued_batches
        return self.queue_length if limit is None else limit

    @property
    def threads(self) -> int:
        """Number of batches of a version that run at the same time."""
        return self.num_batch_threads or 1

    @property
    def weight(self) -> float:
        """The model's share of a device, relative to others'."""
        return 1.0 if self.scheduling_weight is None else self.scheduling_weight

    def over(self, other: "BatchingParameters") -> "BatchingParameters":
        """Return these parameters, with `other`'s values for those that are not set.

        The sizes all come from one of the two, and so do the fields that decide when a batch leaves.

        Raises:
            InvalidArgument: the merged parameters contradict each other.
        """
        own_sizes = self.max_batch_size is not None or bool(self.allowed_batch_sizes)
        sizes = self if own_sizes else other
        waiting = self if self._sets_mode else other
        execution = self.max_execution_batch_size
        if execution is None and not own_sizes:
            execution = other.max_execution_batch_size
        merged: dict[str, Any] = {
            one.name: _first(getattr(self, one.name), getattr(other, one.name)) for one in dataclasses.fields(self)
        }
        merged |= {name: getattr(sizes, name) for name in ("max_batch_size", "allowed_batch_sizes")}
        merged |= {name: getattr(waiting, name) for name in _MODE_FIELDS}
        return BatchingParameters(**{**merged, "max_execution_batch_size": execution})

    def options(self, exported_sizes: Sequence[int] = ()) -> BatchingOptions:
        """Return the options of a signature whose exporter has checked batches of `exported_sizes`, ascending.

        Raises:
            InvalidArgument: the sizes contradict each other.
        """
        largest, allowed = self._sizes(exported_sizes)
        execution = None
        if self.enable_large_batch_splitting:
            execution = largest if self.max_execution_batch_size is None else self.max_execution_batch_size
        return BatchingOptions(
            max_batch_size=largest,
            allowed_batch_sizes=allowed,
            timeout_s=(self.batch_timeout_micros or 0) / 1e6,
            max_execution_batch_size=execution,
            pad_variable_length_inputs=bool(self.pad_variable_length_inputs),
            objective=self._objective(),
            padding_policy=self._padding_policy,
            sequence_buckets=self.sequence_buckets,
        )

    @property
    def _padding_policy(self) -> PaddingPolicy:
        """The configured policy. Batches with a timeout default to TensorFlow Serving's (decision 15)."""
        if self.batch_padding_policy is not None:
            return self.batch_padding_policy
        return PaddingPolicy.PAD_UP if self.batch_timeout_micros else PaddingPolicy.MIN_COST

    @property
    def _sets_mode(self) -> bool:
        """Whether a field that decides when a batch leaves is set."""
        return any(getattr(self, name) is not None for name in _MODE_FIELDS)

    def _objective(self) -> LatencyObjective | None:
        if self.latency_objective_ms is None:
            return None
        percentile = DEFAULT_PERCENTILE if self.latency_percentile is None else self.latency_percentile
        return LatencyObjective(self.latency_objective_ms / 1000, percentile)

    def _check_own_rules(self) -> None:
        if self.latency_percentile is not None:
            # Checked even without an objective: it is the default for models that have one.
            LatencyObjective(1.0, self.latency_percentile)
        self._objective()
        check_ascending("sequence_buckets", self.sequence_buckets)
        limit = self.low_priority_max_enqueued_batches
        if limit is not None and limit < 1:
            raise InvalidArgument(f"low_priority_max_enqueued_batches must be positive; was {limit}")
        if self.scheduling_weight is not None and not 0 < self.scheduling_weight < math.inf:
            raise InvalidArgument(
                f"scheduling_weight must be positive; was {self.scheduling_weight:g}: the default is 1"
            )

    def _check_mode(self) -> None:
        has_objective = self.latency_objective_ms is not None
        implied = choose_mode(waits=bool(self.batch_timeout_micros), has_objective=has_objective)
        if self.batching_mode in (None, implied):
            return
        raise InvalidArgument(f"batching_mode {self.batching_mode} {_MODE_REQUIREMENTS[self.batching_mode]}")

    def _sizes(self, exported_sizes: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        if self.allowed_batch_sizes:
            largest = self.allowed_batch_sizes[-1] if self.max_batch_size is None else self.max_batch_size
            return largest, self.allowed_batch_sizes
        if self.max_batch_size is not None:
            smaller = [size for size in exported_sizes if size < self.max_batch_size]
            sizes = (*smaller, self.max_batch_size) if smaller else self._sizes_up_to(self.max_batch_size)
            return self.max_batch_size, sizes
        if exported_sizes:
            return exported_sizes[-1], tuple(exported_sizes)
        return DEFAULT_MAX_BATCH_SIZE, self._sizes_up_to(DEFAULT_MAX_BATCH_SIZE)

    def _sizes_up_to(self, largest: int) -> tuple[int, ...]:
        """Return no sizes, or with an objective powers of two up to `largest`: few enough to measure each cost."""
        if self.latency_objective_ms is None:
            return ()
        return (*(1 << power for power in range((largest - 1).bit_length())), largest)


def _first(mine: object, others: object) -> object:
    """Return `mine` if it is set, otherwise `others`."""
    return others if mine in (None, ()) else mine


# Parameters of a server whose operator sets none.
UNSET_PARAMETERS = BatchingParameters()
