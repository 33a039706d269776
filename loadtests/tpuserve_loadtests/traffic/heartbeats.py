"""Heartbeats between coordinator and workers, once per second in both directions, and the workers' names.

A killed process or lost machine sends no notice, and its connection may stay open for hours.
"""

import os
import socket
from collections.abc import Iterable
from typing import Final

# A peer is gone after this many beats without a message.
BEAT_S: Final = 1.0
PATIENCE_BEATS: Final = 10


class Heartbeats:
    """Counter of each peer's missed beats since its last message.

    It counts the process's own beats instead of time. After a pause of the process itself, such as a sleeping machine,
    no peer counts as gone.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._missed = dict.fromkeys(names, 0)

    def hear(self, name: str) -> None:
        """Record a message from a peer. From the first one on, the peer is expected to send more."""
        self._missed[name] = 0

    def forget(self, name: str) -> None:
        self._missed.pop(name, None)

    def beat(self) -> None:
        for name in self._missed:
            self._missed[name] += 1

    def gone(self) -> list[str]:
        """Return the peers without a message for too many beats."""
        return [name for name, missed in self._missed.items() if missed > PATIENCE_BEATS]


def worker_name(process: int | None = None) -> str:
    """Return the name of a process on this machine, by default of this one."""
    return f"{socket.gethostname()} (process {process or os.getpid()})"
