"""Traffic: counts of the requests that reach the server, before their models are known."""

from collections import defaultdict
from typing import Final, Literal, TypeAlias

Refusal: TypeAlias = Literal["too_late", "rate"]
REFUSALS: Final[tuple[Refusal, ...]] = ("too_late", "rate")


class Traffic:
    """The thread of the host's event loop counts. Any thread may read."""

    __slots__ = ("refused", "requests")

    def __init__(self) -> None:
        """Start with no requests."""
        # By version of HTTP, such as `1.1` or `2`.
        self.requests: defaultdict[str, int] = defaultdict(int)
        # Requests that were refused before their message was read, by reason.
        self.refused: dict[Refusal, int] = dict.fromkeys(REFUSALS, 0)
