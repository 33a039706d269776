"""BatchingOptions: how requests for one signature share batches. Imports nothing heavy: settings are checked by it."""

from dataclasses import dataclass, field

from tpuserve_server.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How requests for one signature share batches. Sizes count rows, not requests.

    `max_batch_size` bounds a request, and a batch too unless `max_execution_batch_size` says that batches are smaller:
    then a request that does not fit the open batch is split over several. Without `allowed_batch_sizes` a batch has any
    size and is never padded. A batch that is not full waits `timeout_s` for more rows, counted from its oldest request;
    0 lets it leave as soon as the device is free. `pad_variable_length_inputs`: rows of different shapes share a batch,
    the smaller ones padded to the largest (TensorFlow Serving, batching/batching_options.h).

    Raises:
        InvalidArgument: the sizes are not positive and ascending, or do not fit together, or the timeout is negative.
    """

    max_batch_size: int
    allowed_batch_sizes: tuple[int, ...] = ()
    timeout_s: float = 0.0
    max_execution_batch_size: int | None = None
    pad_variable_length_inputs: bool = False
    # What a batch can be padded to: the allowed sizes up to the one that holds the largest batch.
    buckets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.max_batch_size <= 0:
            raise InvalidArgument(f"max_batch_size must be positive; was {self.max_batch_size}")
        if self.timeout_s < 0:
            raise InvalidArgument(f"batch_timeout_micros must be non-negative; was {round(self.timeout_s * 1e6)}")
        self._check_execution_size()
        self._check_allowed_sizes()
        smaller = [size for size in self.allowed_batch_sizes if size < self.max_rows]
        object.__setattr__(self, "buckets", self.allowed_batch_sizes[: len(smaller) + 1])

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
        if sizes[0] <= 0 or list(sizes) != sorted(set(sizes)):
            raise InvalidArgument(
                f"allowed_batch_sizes entries must be positive and in ascending order; were {list(sizes)}"
            )
        if sizes[-1] != self.max_batch_size:
            raise InvalidArgument(
                "Last entry in allowed_batch_sizes must match max_batch_size; "
                f"last entry was {sizes[-1]}; expected {self.max_batch_size}"
            )
