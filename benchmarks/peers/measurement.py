"""All measurements of one server: loads, memory, and the effects of bad and large requests on good ones."""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import mlp_model
from benchmarks.harness.load_tools import Load, framed, run_h2load, run_wrk
from benchmarks.harness.measurement import WrongAnswer, check_size
from benchmarks.harness.process_tree import Memory, ServerDied
from benchmarks.peers import clients as peer_clients
from benchmarks.peers.clients import Poisoned, Stall
from benchmarks.peers.servers import Serving
from benchmarks.peers.wire import Wire, large_body

IN_FLIGHT = 32
# The slowest server takes three seconds to reach a steady state.
WARM_UP_S = 4
LONE_WARM_UP_S = 1
LARGE_BYTES = 99_000_000
READY_TIMEOUT_S = 180.0
_RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class Point:
    """A server under load over one wire. CPU is of its whole process tree, in seconds per 1000 requests."""

    wire: str
    load: Load
    cpu_s_per_1000: float
    lone: Load


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one server."""

    points: tuple[Point, ...]
    memory: Memory
    poisoned: Poisoned
    stall: Stall


def measure(serving: Serving, seconds: int, scratch: Path, progress: Callable[[str], None]) -> Measured:
    """Wait until the server's outputs are correct, load it over each protocol, then send bad and large requests.

    Raises ServerDied, ToolFailed, or WrongAnswer. After WrongAnswer, all measurements are meaningless.
    """
    wait_until_ready(serving)
    check_all(serving)
    points = tuple(_measure_point(serving, wire, seconds, scratch, progress) for wire in serving.subject.wires)
    check_all(serving)
    memory = serving.tree.memory()
    wire = next(wire for wire in serving.subject.wires if wire.protocol == "rest")
    progress("sending invalid rows")
    poisoned = asyncio.run(peer_clients.poison(wire, serving.ports["rest"]))
    progress("sending a body of 99 MB")
    stall = asyncio.run(peer_clients.stall(wire, serving.ports["rest"], large_body(wire, LARGE_BYTES)))
    return Measured(points, memory, poisoned, stall)


def wait_until_ready(serving: Serving) -> None:
    """Send requests until every protocol returns a response of any status. Raises ServerDied after a timeout."""
    give_up_s = time.monotonic() + READY_TIMEOUT_S
    for wire in serving.subject.wires:
        while not _answers(wire, serving.ports[wire.protocol]):
            serving.tree.check_alive()
            if time.monotonic() > give_up_s:
                raise ServerDied(f"did not respond within {READY_TIMEOUT_S:.0f} s:\n{serving.tree.log_tail()}")
            # Wait like a sleep, but return at once if the server ends. The next check reports that.
            with contextlib.suppress(subprocess.TimeoutExpired):
                serving.tree.process.wait(_RETRY_S)


def _answers(wire: Wire, port: int) -> bool:
    try:
        asyncio.run(peer_clients.check_answers(wire, port))
    except WrongAnswer:
        return False
    return True


def check_all(serving: Serving) -> None:
    """Check the outputs over every protocol of the server, unless it is an echo. Raises WrongAnswer."""
    for wire in () if serving.subject.is_echo else serving.subject.wires:
        asyncio.run(peer_clients.check_answers(wire, serving.ports[wire.protocol]))


def _measure_point(serving: Serving, wire: Wire, seconds: int, scratch: Path, progress: Callable[[str], None]) -> Point:
    progress(f"{wire.title}, {IN_FLIGHT} in flight")
    body = write_body(wire, scratch)
    _load(serving, wire, IN_FLIGHT, WARM_UP_S, body, scratch)
    load, cpu_s = measured_load(serving, wire, IN_FLIGHT, seconds, body, scratch)
    progress(f"{wire.title}, one in flight")
    _load(serving, wire, 1, LONE_WARM_UP_S, body, scratch)
    lone = _load(serving, wire, 1, seconds, body, scratch)
    serving.tree.check_alive()
    return Point(wire.name, load, 1000 * cpu_s / load.requests, lone)


def measured_load(
    serving: Serving, wire: Wire, in_flight: int, seconds: int, body: Path, scratch: Path
) -> tuple[Load, float]:
    """Load the server, and return the load and the CPU time of the process tree, in seconds. Raises WrongAnswer."""
    before_s = serving.tree.cpu_seconds()
    load = _load(serving, wire, in_flight, seconds, body, scratch)
    cpu_s = serving.tree.cpu_seconds() - before_s
    if wire.protocol == "grpc":
        check_size(load, asyncio.run(peer_clients.answer_size(wire, serving.ports["grpc"])))
    return load, cpu_s


def write_body(wire: Wire, scratch: Path) -> Path:
    """Write the load generator's request of one row, and return its path."""
    body = scratch / f"body.{wire.name}"
    message = wire.encode(mlp_model.example())
    body.write_bytes(framed(message) if wire.protocol == "grpc" else message)
    return body


def _load(serving: Serving, wire: Wire, in_flight: int, seconds: int, body: Path, scratch: Path) -> Load:
    port = serving.ports[wire.protocol]
    if wire.protocol == "grpc":
        return run_h2load(port, wire.path, body, in_flight=in_flight, duration_s=seconds, scratch=scratch)
    return run_wrk(
        port, wire.path, body, in_flight=in_flight, duration_s=seconds, scratch=scratch, headers=wire.headers
    )
