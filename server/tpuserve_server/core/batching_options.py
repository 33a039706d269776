"""BatchingOptions: how requests for one signature share batches. Imports nothing heavy: settings are checked by it."""

from dataclasses import dataclass

from tpuserve_server.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How requests for one signature share batches. Sizes count rows, not requests.

    Without `allowed_batch_sizes` a batch has any size up to `max_batch_size` and is never padded.

    Raises:
        InvalidArgument: the sizes are not positive and ascending, or the last differs from `max_batch_size`.
    """

    max_batch_size: int
    allowed_batch_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_batch_size <= 0:
            raise InvalidArgument(f"max_batch_size must be positive; was {self.max_batch_size}")
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
