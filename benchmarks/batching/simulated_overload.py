"""Goodput under overload: today's server and candidate queues, at 1 to 10 times the capacity and in a retry storm."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks.batching import overload_policies as policies
from benchmarks.batching.overload import Clients, EventTimeline, Host, HostCosts, Load, Tally
from benchmarks.batching.overload_server import ServerLine
from benchmarks.batching.simulation import Device
from tests.support.virtual_time import VirtualClock

LEAST_SHARE_OF_PEAK: Final = 0.90
SERVER: Final = "server"
TIMEOUT_S: Final = 0.5
# 1,231 rows per second in batches of 32, each 26 ms.
DEVICE: Final = Device("10 ms + 0.5 ms per row", 10e-3, 5e-4, 32, TIMEOUT_S)
_SEED = 1
_RETRIES = 3
_UNLIMITED = float("inf")

Policy: TypeAlias = Callable[[EventTimeline, Device, Host, float], policies.FirstCome]
POLICIES: Final[Mapping[str, Policy]] = {
    "first come": policies.FirstCome,
    "(a) predicted finish": policies.Predicted,
    "(b) earliest deadline": policies.EarliestDeadline,
    "(a) and drops of (b)": policies.PredictedFirstCome,
    "(a) + (b)": policies.PredictedEarliestDeadline,
    "(c) adaptive LIFO": policies.AdaptiveLifo,
    "(d) CoDel": policies.ControlledDelay,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load relative to the capacity. `timeouts_s` are the deadlines of equal shares of the requests."""

    name: str
    load: float
    retries: int = 0
    timeouts_s: tuple[float, ...] = (TIMEOUT_S,)


SCENARIOS: Final = (
    Scenario("1x", 1.0),
    Scenario("2x", 2.0),
    Scenario("5x", 5.0),
    Scenario("10x", 10.0),
    Scenario("storm 1.5x", 1.5, _RETRIES),
    Scenario("mixed 1.2x", 1.2, 0, (0.1, TIMEOUT_S, 2.0)),
    Scenario("mixed 2x", 2.0, 0, (0.1, TIMEOUT_S, 2.0, _UNLIMITED)),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A host before the device. `decode`, `encode` and `refuse` are shares of the device's time for a row at peak."""

    name: str
    decode: float
    encode: float
    refuse: float

    @property
    def costs(self) -> HostCosts:
        """Seconds of each step."""
        row_s = 1 / device_peak()
        return HostCosts(self.decode * row_s, self.encode * row_s, self.refuse * row_s)

    @property
    def peak(self) -> float:
        """Highest rate of responses: that of the device or of the host, whichever is lower."""
        work = self.decode + self.encode
        return device_peak() / max(1.0, work)


# A refusal costs a twentieth of a request, and a hundredth on the last machine. The server needs 0.2 of a request.
MACHINES: Final = (
    Machine("no host", 0.0, 0.0, 0.0),
    Machine("host 50 %", 0.3, 0.2, 0.025),
    Machine("host 50 %, refusal 0.2 of a request", 0.3, 0.2, 0.1),
    Machine("host 150 %", 0.9, 0.6, 0.015),
)


def device_peak() -> float:
    """Return the device's rows per second in full batches."""
    return DEVICE.max_rows / DEVICE.cost_s(DEVICE.max_rows)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one queue in one scenario: goodput over the peak, by kind of request, and the median latency."""

    machine: str
    queue: str
    scenario: str
    goodput: float
    by_kind: tuple[float, ...]
    refused_per_s: float
    late_per_s: float
    p50_s: float


def measure(*, quick: bool, report: Callable[[str], None]) -> Iterator[Outcome]:
    """Simulate every queue on every machine in every scenario, or with `quick` only the server on one machine."""
    seconds = 1.0 if quick else 4.0
    for machine in MACHINES[1:2] if quick else MACHINES:
        for queue in (SERVER,) if quick else (SERVER, *POLICIES):
            report(f"{machine.name}, {queue}")
            for scenario in SCENARIOS:
                yield simulate(machine, queue, scenario, seconds)


def simulate(machine: Machine, queue: str, scenario: Scenario, seconds: float) -> Outcome:
    """Simulate one queue in one scenario. The same arguments give the same result."""
    # Responses count after four deadlines: the queue is then in its steady state.
    warm_s = 4 * TIMEOUT_S
    load = Load(scenario.load * machine.peak, warm_s + seconds, scenario.timeouts_s, scenario.retries, warm_s)
    tally = _run_server(machine, load) if queue == SERVER else _run_policy(machine, POLICIES[queue], load)
    per_s = [tally.good.get(kind, 0) / seconds for kind in range(len(scenario.timeouts_s))]
    return Outcome(
        machine=machine.name,
        queue=queue,
        scenario=scenario.name,
        goodput=sum(per_s) / machine.peak,
        by_kind=tuple(each / machine.peak for each in per_s),
        refused_per_s=tally.refused / seconds,
        late_per_s=tally.late / seconds,
        p50_s=statistics.median(tally.latencies_s) if tally.latencies_s else 0.0,
    )


def _run_policy(machine: Machine, policy: Policy, load: Load) -> Tally:
    timeline = EventTimeline()
    host = Host(timeline, machine.costs)
    host.line = policy(timeline, DEVICE, host, TIMEOUT_S)
    host.clients = clients = Clients(timeline, load, host.send, _SEED)
    timeline.run()
    return clients.tally


def _run_server(machine: Machine, load: Load) -> Tally:
    clock = VirtualClock()
    host = Host(clock, machine.costs)
    host.line = line = ServerLine(clock, DEVICE, host, TIMEOUT_S)
    host.clients = clients = Clients(clock, load, host.send, _SEED)
    try:
        clock.run()
    finally:
        line.batcher.stop()
    return clients.tally


def is_reached(outcomes: Sequence[Outcome]) -> bool:
    """Return whether the server's goodput is at least 90 % of the peak in every scenario, with the host within it.

    On a machine whose host is the bottleneck, the refusals themselves take a tenth of it at ten times the load.
    """
    within = {machine.name for machine in MACHINES if machine.peak == device_peak()}
    return all(
        outcome.goodput >= LEAST_SHARE_OF_PEAK
        for outcome in outcomes
        if outcome.queue == SERVER and outcome.machine in within
    )


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print a table of goodput for each machine."""
    for machine in MACHINES:
        rows = [outcome for outcome in outcomes if outcome.machine == machine.name]
        if not rows:
            continue
        table = Table(title=f"Goodput in % of {machine.peak:.0f}/s, {machine.name}; median latency in ms")
        table.add_column("queue")
        for scenario in SCENARIOS:
            table.add_column(scenario.name, justify="right")
        for queue in dict.fromkeys(row.queue for row in rows):
            mine = [row for row in rows if row.queue == queue]
            table.add_row(queue, *map(_cell, mine))
        console.print(table)


def _cell(outcome: Outcome) -> str:
    if len(outcome.by_kind) > 1:
        return "+".join(f"{100 * share:.0f}" for share in outcome.by_kind)
    return f"{100 * outcome.goodput:.0f} ({1000 * outcome.p50_s:.0f})"


def as_json(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Return all outcomes as JSON data."""
    return [asdict(outcome) for outcome in outcomes]
