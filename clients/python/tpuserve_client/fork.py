"""Clients in a forked process: the child gets state of its own.

A connection that two processes share mixes their responses, and a lock that another thread held at the fork stays
locked in the child. Servers that fork their workers (gunicorn, celery, multiprocessing) copy the clients of the parent.
"""

import os
from typing import Any, Final, Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """An object whose connections and locks must not be shared with the parent process."""

    def _renew(self) -> object:
        """Replace all state that cannot be shared. Return the old state."""


_renewable: "Final[WeakSet[Renewable]]" = WeakSet()
# The parent's gRPC channels. Destroying a channel in the child can block: it waits for threads of the parent.
_inherited: Final[list[Any]] = []


def renew_after_fork(client: Renewable) -> None:
    """Replace the client's state in every process that this one forks."""
    _renewable.add(client)


def _renew_all() -> None:
    for client in list(_renewable):
        _inherited.append(client._renew())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_all)
