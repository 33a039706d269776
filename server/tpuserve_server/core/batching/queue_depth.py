"""QueueDepth: the number of requests that wait for a device."""

from typing import NamedTuple


class QueueDepth(NamedTuple):
    """Waiting requests and their rows, without padding. A request in parts counts once for each part that waits."""

    requests: int = 0
    rows: int = 0

    def plus(self, other: "QueueDepth") -> "QueueDepth":
        """Return the sum of both."""
        return QueueDepth(self.requests + other.requests, self.rows + other.rows)
