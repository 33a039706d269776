"""HeldBytes: the bytes that a budget has charged, all together and by connection."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

# Fewer bytes are not worth a search for free pages.
_TRIM_BYTES: Final = 32 << 20


class HeldBytes:
    """Count of charged bytes. One event loop's thread owns it."""

    __slots__ = ("_by_connection", "_most", "_trim", "total")

    def __init__(self, trim: Callable[[], None] | None = None) -> None:
        """Start with no bytes.

        `trim` is called when the last of many bytes is returned: the C library keeps the memory of freed parts.
        """
        self.total = self._most = 0
        self._by_connection: Counter[Hashable] = Counter()
        self._trim = trim

    def of(self, connection: Hashable) -> int:
        """Return the bytes of a connection."""
        return self._by_connection[connection]

    def add(self, connection: Hashable, size_bytes: int) -> None:
        """Charge bytes, or return them if `size_bytes` is negative. None: an unknown connection."""
        self.total += size_bytes
        self._most = max(self._most, self.total)
        if not self.total:
            if self._trim is not None and self._most >= _TRIM_BYTES:
                self._trim()
            self._most = 0
        if connection is not None:
            self._by_connection[connection] += size_bytes
            if not self._by_connection[connection]:
                del self._by_connection[connection]
