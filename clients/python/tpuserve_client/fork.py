"""Clients in a forked process: the child gets its own connections and locks.

A connection that two processes share mixes their responses, and a lock that another thread held at the fork stays
locked in the child. Servers that fork their workers (gunicorn, celery, multiprocessing) copy the clients of the parent.

gRPC's core survives a fork by itself, except its asyncio part: one thread serves all asyncio channels of a process, and
the child does not have that thread. The parent therefore drops its idle asyncio channels before the fork.
"""

import os
import threading
import time
from typing import Any, Final, Protocol
from weakref import WeakSet

# After its last channel the thread ends at once, unless the machine is busy or another library has asyncio channels.
_POLLER_END_S: Final = 0.5
_CLOSING_S: Final = 0.02
# Name of the thread that serves gRPC's asyncio channels, as `threading` shows it.
_POLLER: Final = "_poll_wrapper"


class Forkable(Protocol):
    """A client whose state belongs to one process."""

    def _release(self) -> bool:
        """Drop what must not exist at a fork and can be made again. Return whether there was any."""

    def _renew(self) -> object:
        """Replace all state that belongs to the parent process. Return the old state."""


class _Inheritance:
    """State of the parent that the child must keep, but must not use."""

    def __init__(self) -> None:
        # Destroying an asyncio channel in the child blocks, and disturbs the parent.
        self.kept: list[Any] = []
        self.poller_was_running = False
        self.lost_poller = False
        self.is_child = False


_clients: "Final[WeakSet[Forkable]]" = WeakSet()
_inheritance: Final = _Inheritance()


def survive_forks(client: Forkable) -> None:
    """Replace the client's state in every process that this one forks."""
    _clients.add(client)


def has_lost_poller() -> bool:
    """Return whether this process cannot make asyncio calls over gRPC: such calls were pending at the fork."""
    return _inheritance.lost_poller


def is_child() -> bool:
    """Return whether this process was forked from one that used clients."""
    return _inheritance.is_child


def _before_fork() -> None:
    has_released = False
    for client in list(_clients):
        has_released = client._release() or has_released
    poller = next((thread for thread in threading.enumerate() if _POLLER in thread.name), None)
    if poller is not None and has_released:
        # gRPC does not wait for the end of its thread, which may hold locks until then.
        poller.join(_POLLER_END_S)
        # Its other threads close the connection under locks that the child would inherit.
        time.sleep(_CLOSING_S)
    _inheritance.poller_was_running = poller is not None and poller.is_alive()


def _in_child() -> None:
    _inheritance.is_child = True
    _inheritance.lost_poller = _inheritance.lost_poller or _inheritance.poller_was_running
    for client in list(_clients):
        _inheritance.kept.append(client._renew())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
