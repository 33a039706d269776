"""Roles of the server's processes and threads, and the CPU of a request that each role takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import psutil

from benchmarks.harness.thread_times import ThreadKey, ThreadTimes

# `server` is the one process that does everything without front-end processes.
Role: TypeAlias = Literal["supervisor", "engine", "front-ends", "server"]

_ENGINE_MODULE = "tpuserve_server.process.engine"
_DEVICE_PREFIX = "device-"
_WORKER_PREFIX = "wrk:"


@dataclass(frozen=True, slots=True)
class RoleCost:
    """CPU of a request in microseconds, summed over the processes of one role.

    `loop_us`: the thread that runs the event loop. `device_us`: the threads that form batches and run the model.
    `worker_us`: Envoy's worker threads, which parse HTTP. `other_us`: all others.
    """

    loop_us: float
    device_us: float
    worker_us: float
    other_us: float

    @property
    def python_us(self) -> float:
        """Time of the threads that share the lock of a Python interpreter, so that they run one after the other."""
        return self.loop_us + self.device_us

    @property
    def total_us(self) -> float:
        """Time of all threads."""
        return self.loop_us + self.device_us + self.worker_us + self.other_us


def roles_of(supervisor: int, processes: Iterable[psutil.Process]) -> dict[int, Role]:
    """Return the roles of the processes of a server on the Envoy host, by number. `supervisor` is the first of them."""
    commands: dict[int, Sequence[str]] = {}
    for process in processes:
        try:
            commands[process.pid] = process.cmdline()
        except psutil.NoSuchProcess:
            continue
    has_engine = any(_ENGINE_MODULE in command for command in commands.values())
    return {pid: _role(command, pid == supervisor, has_engine) for pid, command in commands.items()}


def role_costs(roles: Mapping[int, Role], spent_s: ThreadTimes, requests: int) -> dict[Role, RoleCost]:
    """Return the cost of a request in each role, for `requests` answered in the CPU time `spent_s`.

    A thread that runs an event loop has the name of its process. It is the busiest of the threads with that name.
    """
    sums: dict[Role, dict[str, float]] = {}
    loops = _busiest(spent_s)
    for key, seconds in spent_s.items():
        if key.pid in roles:
            parts = sums.setdefault(roles[key.pid], dict.fromkeys(("loop", "device", "worker", "other"), 0.0))
            parts["loop" if loops.get(key.pid) == key else _part(key.name)] += 1e6 * seconds / requests
    return {role: RoleCost(*parts.values()) for role, parts in sums.items()}


def _role(command: Sequence[str], is_supervisor: bool, has_engine: bool) -> Role:
    if is_supervisor:
        return "supervisor"
    if _ENGINE_MODULE in command:
        return "engine"
    return "front-ends" if has_engine else "server"


def _busiest(spent_s: ThreadTimes) -> dict[int, ThreadKey]:
    found: dict[int, ThreadKey] = {}
    for key, seconds in spent_s.items():
        if _part(key.name) == "other" and (key.pid not in found or seconds > spent_s[found[key.pid]]):
            found[key.pid] = key
    return found


def _part(name: str) -> str:
    if name.startswith(_DEVICE_PREFIX):
        return "device"
    return "worker" if name.startswith(_WORKER_PREFIX) else "other"
