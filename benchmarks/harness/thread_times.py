"""CPU time of the threads of processes, by the name that each has in the kernel. Linux only."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psutil


class ThreadKey(NamedTuple):
    """A thread: the numbers of its process and of the thread, and its name in the kernel, of at most 15 bytes."""

    pid: int
    thread: int
    name: str


# User and system time in seconds. Its resolution is a tick of the kernel, usually 10 ms.
ThreadTimes: TypeAlias = Mapping[ThreadKey, float]


def read_thread_times(processes: Iterable[psutil.Process]) -> ThreadTimes:
    """Return the CPU time of all living threads so far. Threads and processes that end meanwhile are omitted."""
    found: dict[ThreadKey, float] = {}
    for process in processes:
        try:
            threads = process.threads()
        except psutil.NoSuchProcess:
            continue
        for each in threads:
            name = _name(process.pid, each.id)
            if name is not None:
                found[ThreadKey(process.pid, each.id, name)] = each.user_time + each.system_time
    return found


def spent_s(before: ThreadTimes, after: ThreadTimes) -> ThreadTimes:
    """Return the CPU time of the threads in `after` since `before`. A thread that is new there has spent all its time.

    A thread that has changed its name counts under the new one.
    """
    known = {(key.pid, key.thread): seconds for key, seconds in before.items()}
    return {key: seconds - known.get((key.pid, key.thread), 0.0) for key, seconds in after.items()}


def _name(pid: int, thread: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text().rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return None
