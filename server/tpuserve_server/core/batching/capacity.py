"""Capacity of a queue of batches: the room for a task that opens a batch, and for the parts of a split request."""

from tpuserve_server.core.batching.lane import Lane
from tpuserve_server.core.errors import Unavailable


def check_room(lane: Lane, max_enqueued_batches: int) -> None:
    """Raise Unavailable if the signature may not have another batch."""
    if lane.enqueued >= max_enqueued_batches:
        raise Unavailable(
            "The batch scheduling queue to which this task was submitted is full; currently "
            f"{lane.enqueued} batches enqueued and max_enqueued_batches is {max_enqueued_batches}"
        )


def check_capacity(lane: Lane, max_enqueued_batches: int, rows: int, room: int, *, has_open_batch: bool) -> None:
    """Raise Unavailable if `rows` rows do not fit into the `room` of the open batch and the batches behind it."""
    # An open batch counts as enqueued, even if it is empty.
    enqueued = lane.enqueued + (not has_open_batch)
    capacity = max(max_enqueued_batches - enqueued, 0) * lane.max_rows
    capacity += room if enqueued <= max_enqueued_batches else 0
    if rows > capacity:
        raise Unavailable(
            f"The batch scheduling queue to which this task was submitted is full; task size is {rows} but "
            f"scheduling capacity is only {capacity} (num_enqueued_batches={enqueued}, "
            f"max_enqueued_batches={max_enqueued_batches}, open_batch_size={lane.max_rows - room}, "
            f"max_execution_batch_size={lane.max_rows})"
        )


def part_sizes(rows: int, room: int, max_rows: int) -> list[int]:
    """Return the sizes of a split request's parts: `room` fills the open batch, then full batches and a remainder."""
    first = min(room, rows)
    full, last = divmod(rows - first, max_rows)
    return [size for size in (first, *[max_rows] * full, last) if size]
