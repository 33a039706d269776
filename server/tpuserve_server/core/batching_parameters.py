"""BatchingParameters: what an operator says about batching, in flags or in a file, before any model is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.errors import InvalidArgument

# TensorFlow Serving's default (SharedBatchScheduler::QueueOptions).
DEFAULT_MAX_BATCH_SIZE = 1000
# TensorFlow Serving's is 10, which a burst of small requests fills: it has no batch to run them in before a thread is
# free. A queue that waits too long is bounded by the requests' deadlines here.
DEFAULT_MAX_ENQUEUED_BATCHES = 512

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class BatchingParameters:
    """TensorFlow Serving's message of this name, with its meaning and rules; None where nothing is said.

    Raises:
        InvalidArgument: with TensorFlow Serving's wording.
    """

    max_batch_size: int | None = None
    allowed_batch_sizes: tuple[int, ...] = ()
    batch_timeout_micros: int | None = None
    max_enqueued_batches: int | None = None
    num_batch_threads: int | None = None
    enable_large_batch_splitting: bool | None = None
    max_execution_batch_size: int | None = None
    pad_variable_length_inputs: bool | None = None

    def __post_init__(self) -> None:
        if self.num_batch_threads is not None and self.num_batch_threads < 1:
            raise InvalidArgument(f"num_batch_threads must be positive; was {self.num_batch_threads}")
        if self.batch_timeout_micros is not None and self.batch_timeout_micros < 0:
            raise InvalidArgument(f"batch_timeout_micros must be non-negative; was {self.batch_timeout_micros}")
        # 0 means 1, but where large requests are split (SharedBatchScheduler::AddQueue).
        least = 1 if self.enable_large_batch_splitting else 0
        if self.max_enqueued_batches is not None and self.max_enqueued_batches < least:
            raise InvalidArgument(f"max_enqueued_batches must be positive; was {self.max_enqueued_batches}")
        if self.max_batch_size is not None or self.allowed_batch_sizes:
            self.options()

    @property
    def queue_length(self) -> int:
        """How many batches of a signature may wait."""
        if self.max_enqueued_batches is None:
            return DEFAULT_MAX_ENQUEUED_BATCHES
        return max(self.max_enqueued_batches, 1)

    def over(self, other: "BatchingParameters") -> "BatchingParameters":
        """This, and what `other` says where this says nothing. Sizes come together, from one of the two.

        Raises:
            InvalidArgument: what results does not fit together.
        """
        own_sizes = self.max_batch_size is not None or bool(self.allowed_batch_sizes)
        sizes = self if own_sizes else other
        execution = self.max_execution_batch_size
        if execution is None and not own_sizes:
            execution = other.max_execution_batch_size
        return BatchingParameters(
            max_batch_size=sizes.max_batch_size,
            allowed_batch_sizes=sizes.allowed_batch_sizes,
            batch_timeout_micros=_first(self.batch_timeout_micros, other.batch_timeout_micros),
            max_enqueued_batches=_first(self.max_enqueued_batches, other.max_enqueued_batches),
            num_batch_threads=_first(self.num_batch_threads, other.num_batch_threads),
            enable_large_batch_splitting=_first(self.enable_large_batch_splitting, other.enable_large_batch_splitting),
            max_execution_batch_size=execution,
            pad_variable_length_inputs=_first(self.pad_variable_length_inputs, other.pad_variable_length_inputs),
        )

    def options(self, exported_sizes: Sequence[int] = ()) -> BatchingOptions:
        """For a signature whose exporter has checked batches of `exported_sizes`, ascending.

        Raises:
            InvalidArgument: the sizes do not fit together.
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
        )

    def _sizes(self, exported_sizes: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        if self.allowed_batch_sizes:
            largest = self.allowed_batch_sizes[-1] if self.max_batch_size is None else self.max_batch_size
            return largest, self.allowed_batch_sizes
        if self.max_batch_size is not None:
            smaller = [size for size in exported_sizes if size < self.max_batch_size]
            return self.max_batch_size, (*smaller, self.max_batch_size) if smaller else ()
        if exported_sizes:
            return exported_sizes[-1], tuple(exported_sizes)
        return DEFAULT_MAX_BATCH_SIZE, ()


def _first(mine: _Value | None, others: _Value | None) -> _Value | None:
    return others if mine is None else mine


# What holds where nobody says anything.
NOTHING_SAID = BatchingParameters()
