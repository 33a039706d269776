"""Turns of servers that are all up at once: CPU per request in rounds, so that all of them meet the same machine."""

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.load_tools import Load
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.process_tree import Memory
from benchmarks.harness.turns import in_turn
from benchmarks.peers.measurement import LONE_WARM_UP_S, check_all, measured_load, wait_until_ready, write_body
from benchmarks.peers.servers import Serving, Subject, serving, version
from benchmarks.peers.wire import WIRES, Wire


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of a server, one a round: the load, and the CPU of the process tree in µs per request."""

    name: str
    wire: str
    in_flight: int
    loads: tuple[Load, ...]
    cpu_us: tuple[float, ...]

    @property
    def case(self) -> tuple[str, int]:
        """The wire and the number of requests in flight, which the turns of the other servers share."""
        return self.wire, self.in_flight


@dataclass(frozen=True, slots=True)
class Server:
    """A server of a rotation, with its memory after the loads."""

    name: str
    title: str
    version: str
    memory: Memory


@dataclass(frozen=True, slots=True)
class Rotation:
    """One run. `load_before` is the machine's 1-minute load average before it began."""

    date: str
    machine: str
    load_before: float
    seconds: int
    servers: tuple[Server, ...]
    turns: tuple[Turns, ...]

    def write(self, file: Path) -> None:
        """Write everything as JSON; times in ms, CPU in µs per request, memory in MB of 10^6 bytes."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=2))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rotation measures: `rounds` turns of `seconds` for each server and wire, with each number in flight."""

    rounds: int
    seconds: int
    in_flight: tuple[int, ...]


def rotate(
    subjects: Iterable[Subject], model: Path, plan: Plan, scratch: Path, progress: Callable[[str], None]
) -> tuple[tuple[Server, ...], tuple[Turns, ...]]:
    """Start all servers, check their outputs, load them in turns, and check them again.

    Raises ServerDied, ToolFailed, or WrongAnswer, also if requests fail.
    """
    with contextlib.ExitStack() as stack:
        running = []
        for subject in subjects:
            progress(f"{subject.title}: starting")
            folder = scratch / subject.name
            folder.mkdir()
            running.append(stack.enter_context(serving(subject, model, folder)))
            if not subject.is_echo:
                wait_until_ready(running[-1])
            check_all(running[-1])
        turns = _turns(running, plan, scratch, progress)
        for each in running:
            check_all(each)
        servers = [
            Server(each.subject.name, each.subject.title, version(each.subject), each.tree.memory()) for each in running
        ]
    return tuple(servers), turns


def _turns(running: Sequence[Serving], plan: Plan, scratch: Path, progress: Callable[[str], None]) -> tuple[Turns, ...]:
    found: dict[tuple[str, str, int], list[tuple[Load, float]]] = defaultdict(list)
    # Round 0 warms up.
    for number in range(plan.rounds + 1):
        progress(f"round {number} of {plan.rounds}" if number else "warming up")
        seconds = plan.seconds if number else LONE_WARM_UP_S
        for wire in WIRES.values():
            for in_flight in plan.in_flight:
                for each in in_turn([each for each in running if wire in each.subject.wires], number):
                    turn = _turn(each, wire, in_flight, seconds, scratch)
                    if number:
                        found[each.subject.name, wire.name, in_flight].append(turn)
    return tuple(
        Turns(*key, tuple(load for load, _ in turns), tuple(cpu_us for _, cpu_us in turns))
        for key, turns in found.items()
    )


def _turn(serving: Serving, wire: Wire, in_flight: int, seconds: int, scratch: Path) -> tuple[Load, float]:
    load, cpu_s = measured_load(serving, wire, in_flight, seconds, write_body(wire, scratch), scratch)
    serving.tree.check_alive()
    if load.failures:
        raise WrongAnswer(f"{serving.subject.title}, {wire.title}: {load.failures} of {load.requests} requests failed")
    return load, 1e6 * cpu_s / load.requests
