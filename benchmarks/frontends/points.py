"""Points of the benchmark: a load on a server with front-end processes, and the CPU of its threads."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.frontends.roles import Role, RoleCost, role_costs, roles_of
from benchmarks.harness.load_tools import GRPC_CONNECTIONS, Load, run_h2load, run_wrk
from benchmarks.harness.measurement import WARM_UP_S, Bodies
from benchmarks.harness.targets import GRPC_PATH, REST_PATH, Protocol, Target
from benchmarks.harness.thread_times import read_thread_times, spent_s

# Cores for each thread of a load generator. Fewer threads would limit the rate of a server with many cores.
_CORES_A_THREAD: Final = 4


@dataclass(frozen=True, slots=True)
class FrontEndPoint:
    """A server under one load, with the CPU of a request by the role of its processes.

    `frontends` is 1 for the server without front-end processes.
    """

    frontends: int
    protocol: Protocol
    in_flight: int
    load: Load
    costs: Mapping[Role, RoleCost]

    @property
    def models(self) -> RoleCost:
        """The process that has the models: the engine, or the only process."""
        return self.costs["engine" if self.frontends > 1 else "server"]

    @property
    def serial_us(self) -> float:
        """Time of the threads of the process with the models that share Python's lock."""
        return self.models.python_us

    @property
    def limit_per_s(self) -> float:
        """Requests per second at which these threads are always busy."""
        return 1e6 / self.serial_us

    @property
    def front_end_us(self) -> float | None:
        """Time of the busier thread of a front-end: its loop or Envoy's worker. None without front-end processes."""
        cost = self.costs.get("front-ends")
        return None if cost is None else max(cost.loop_us, cost.worker_us)

    @property
    def enough_front_ends(self) -> float | None:
        """Number of front-ends, each with its own cores, whose busier threads reach `limit_per_s`."""
        return None if self.front_end_us is None else self.front_end_us / self.serial_us


def measure_point(
    target: Target, frontends: int, in_flight: int, duration_s: int, bodies: Bodies, scratch: Path
) -> FrontEndPoint:
    """Warm up the server, then load it for `duration_s` seconds. Raises ServerDied and ToolFailed."""
    _load(target, frontends, in_flight, WARM_UP_S, bodies, scratch)
    members = target.tree.members
    before = read_thread_times(members)
    load = _load(target, frontends, in_flight, duration_s, bodies, scratch)
    spent = spent_s(before, read_thread_times(members))
    target.tree.check_alive()
    roles = roles_of(target.tree.process.pid, members)
    return FrontEndPoint(frontends, target.protocol, in_flight, load, role_costs(roles, spent, load.requests))


def _load(target: Target, frontends: int, in_flight: int, duration_s: int, bodies: Bodies, scratch: Path) -> Load:
    threads = max(1, (os.cpu_count() or 1) // _CORES_A_THREAD)
    if target.protocol == "rest":
        return run_wrk(
            target.port,
            REST_PATH,
            bodies.rest,
            in_flight=in_flight,
            duration_s=duration_s,
            scratch=scratch,
            threads=threads,
        )
    connections = GRPC_CONNECTIONS * frontends
    return run_h2load(
        target.port,
        GRPC_PATH,
        bodies.grpc,
        in_flight=in_flight,
        duration_s=duration_s,
        scratch=scratch,
        # The kernel distributes connections by their addresses: with few, a front-end might get none.
        connections=connections,
        threads=min(threads, connections),
    )
