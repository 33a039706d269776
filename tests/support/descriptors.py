"""File descriptors: wait for one, and take all those that `select.select` accepts."""

import contextlib
import os
import resource
import select
import socket
from collections.abc import Iterator

# FD_SETSIZE: `select.select` refuses descriptors from here on. A server with 1,000 connections has such descriptors.
_FD_SETSIZE = 1024


def is_readable(descriptor: int | socket.socket, timeout_s: float) -> bool:
    """Wait at most `timeout_s` until a read would not block."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


@contextlib.contextmanager
def low_descriptors_taken() -> Iterator[None]:
    """Take all descriptors below FD_SETSIZE, so that those opened in the context are above it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * _FD_SETSIZE), limits[1]))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < _FD_SETSIZE:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
