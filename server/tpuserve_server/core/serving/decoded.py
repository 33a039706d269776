"""DecodedBudget: bounds the memory of the objects that a parser makes from one request."""

import threading
from typing import Final

from tpuserve_server.core.terms.errors import InvalidArgument

# Memory of a short string: the object, its pointers in arrays, and its copy for the model. TensorFlow converts strings
# with the GIL held, about 30 ns each, so this also bounds that time: 50 ms for the default budget.
STRING_BYTES: Final = 160


class DecodedBudget:
    """The memory that the decoded objects of one request may take. Thread-safe: `_lock` guards the count."""

    __slots__ = ("_lock", "refusals", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        """Set the size in bytes."""
        self.size_bytes = size_bytes
        self._lock = threading.Lock()
        # Requests that were refused.
        self.refusals = 0

    def check(self, needed_bytes: int, parts: str) -> None:
        """Check an estimate of the memory, before the parser runs. `parts` describes what takes it.

        Raises:
            InvalidArgument: naming the budget and its flag. The request can never succeed.
        """
        if needed_bytes > self.size_bytes:
            with self._lock:
                self.refusals += 1
            raise InvalidArgument(
                f"The request would take about {needed_bytes} bytes when decoded ({parts}), more than the "
                f"{self.size_bytes} bytes of max_decoded_bytes. Send fewer values in a request, or send them in binary "
                "form"
            )


# For callers without options: that of the default flags.
DEFAULT_DECODED: Final = DecodedBudget(256 << 20)
