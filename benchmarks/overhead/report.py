"""Report of the benchmark: every point next to its echo, memory, and the goals with the figures reached."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks.harness.measurement import Point
from benchmarks.harness.process_tree import Memory
from benchmarks.harness.targets import PROTOCOLS, Kind, Protocol
from benchmarks.overhead.call_report import GOALS as CALL_GOALS
from benchmarks.overhead.call_report import RatioGoal, calls_table, cpu_ratio
from benchmarks.overhead.call_turns import CallPoint
from benchmarks.overhead.handshakes import HandshakePoint
from benchmarks.overhead.loop_time import LoopTime, loop_table
from benchmarks.overhead.tls_report import handshake_table, tls_table

MAX_GRPC_CPU, MAX_REST_CPU = 0.15, 0.09
MAX_LONE_P50_MS = 0.8
MAX_RSS_MB = 300.0
MAX_HIT_OVER_RUN = 0.5
MAX_ENSEMBLE_OVER_STEP = 1.3
MAX_TLS_OVER_PLAIN = 1.3
REACH_IN_FLIGHT = 32

Key: TypeAlias = tuple[str, str, int]
Figure: TypeAlias = Callable[[Point], float]


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal. `got` is None if this run did not measure it."""

    name: str
    wanted: str
    got: float | None
    reached: bool | None


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit for the CPU of a kind of server, relative to the server of the MLP alone under the same load."""

    kind: Kind
    name: str
    at_most: float


_HIT: Final = _Limit("cache", "CPU of a cache hit relative to a run", MAX_HIT_OVER_RUN)
_TLS: Final = _Limit("tls", "CPU of a request over TLS relative to plain", MAX_TLS_OVER_PLAIN)
_ENSEMBLE: Final = _Limit("ensemble", "CPU of a two-step ensemble relative to its dearer step", MAX_ENSEMBLE_OVER_STEP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of one run. `load_before` is the machine's 1-minute load average before the run."""

    duration_s: int
    cores: int
    load_before: float
    points: tuple[Point, ...]
    memory: Memory | None
    warnings: tuple[str, ...]
    calls: tuple[CallPoint, ...] = ()
    handshakes: tuple[HandshakePoint, ...] = ()
    loops: tuple[LoopTime, ...] = ()

    def point(self, kind: str, protocol: str, in_flight: int) -> Point | None:
        """Return the point, or None if it was not measured."""
        return self._by_key().get((kind, protocol, in_flight))

    def _by_key(self) -> dict[Key, Point]:
        return {(point.kind, point.protocol, point.in_flight): point for point in self.points}


def goals(outcome: Outcome) -> list[Goal]:
    """Return the goals with the figures of this run."""
    found = [_cpu(outcome, "grpc", MAX_GRPC_CPU), _cpu(outcome, "rest", MAX_REST_CPU)]
    found += [_lone_p50(outcome, protocol) for protocol in PROTOCOLS]
    rss_mb = None if outcome.memory is None else outcome.memory.rss_mb
    found.append(_at_most("RSS, summed over the processes", MAX_RSS_MB, " MB", rss_mb))
    found += [_over_server(outcome, _HIT, *load) for load in product(PROTOCOLS, (1, REACH_IN_FLIGHT))]
    found += [
        _over_server(outcome, limit, protocol, REACH_IN_FLIGHT) for limit in (_ENSEMBLE, _TLS) for protocol in PROTOCOLS
    ]
    found += [_call_ratio(outcome, goal) for goal in CALL_GOALS]
    return found


def as_json(outcome: Outcome) -> dict[str, object]:
    """Return the outcome as JSON data: times in ms, CPU in seconds per 1000 requests, memory in MB of 10^6 bytes."""
    return {
        "duration_s": outcome.duration_s,
        "cores": outcome.cores,
        "load_before": outcome.load_before,
        "calls": [asdict(call) for call in outcome.calls],
        "handshakes": [asdict(point) for point in outcome.handshakes],
        "loops": [asdict(loop) for loop in outcome.loops],
        "points": [asdict(point) | {"rate_per_s": point.load.rate_per_s} for point in outcome.points],
        "memory": None if outcome.memory is None else asdict(outcome.memory),
        "goals": [asdict(goal) for goal in goals(outcome)],
        "warnings": list(outcome.warnings),
    }


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print the tables."""
    console.print(_points_table(outcome))
    if any(point.kind == "ensemble" for point in outcome.points):
        console.print(_ensemble_table(outcome))
    if pairs := _with_tls(outcome):
        console.print(tls_table(pairs))
    if outcome.handshakes:
        console.print(handshake_table(outcome.handshakes))
    if (memory := outcome.memory) is not None:
        console.print(
            f"Memory of the server after the load: RSS {memory.rss_mb:.0f} MB (sum of its processes), "
            f"PSS {memory.pss_mb:.0f} MB (shared pages counted once)",
            soft_wrap=True,
            highlight=False,
        )
    if outcome.calls:
        console.print(calls_table(outcome.calls))
    if outcome.loops:
        console.print(loop_table(outcome.loops))
    console.print(_goals_table(goals(outcome)))
    for warning in outcome.warnings:
        console.print(f"warning: {warning}", soft_wrap=True, markup=False)


def _with_tls(outcome: Outcome) -> list[tuple[Point, Point]]:
    """Return the points with TLS, each with the one without."""
    plain = {(each.protocol, each.in_flight): each for each in outcome.points if each.kind == "server"}
    secure = [each for each in outcome.points if each.kind == "tls"]
    keys = [(each.protocol, each.in_flight) for each in secure]
    return [(each, plain[key]) for each, key in zip(secure, keys, strict=True) if key in plain]


def _points_table(outcome: Outcome) -> Table:
    table = Table(
        title=f"MLP 64-128-10, one row per request. {outcome.duration_s} s per measurement, {outcome.cores} cores, "
        f"shared with the load generator, load average before the run: {outcome.load_before:.1f}",
        title_justify="left",
        caption="CPU: user and system time of the server's process tree, in seconds per 1000 requests. "
        "Echo: a byte echo on h2corn, measured before the server. Hit: the same request to a server with a "
        "response cache, measured after the server.",
        caption_justify="left",
    )
    table.add_column("protocol")
    for heading in (
        "in flight",
        "req/s",
        "p50 ms",
        "p99 ms",
        "CPU",
        "echo req/s",
        "echo p99",
        "echo CPU",
        "rate/echo",
        "CPU/echo",
        "hit CPU",
        "hit/run",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for key in dict.fromkeys((point.protocol, point.in_flight) for point in outcome.points):
        table.add_row(*_row(outcome, *key))
    return table


def _row(outcome: Outcome, protocol: Protocol, in_flight: int) -> list[str]:
    server, echo, cache = (outcome.point(kind, protocol, in_flight) for kind in ("server", "echo", "cache"))
    return [
        protocol,
        str(in_flight),
        *(_show(server, figure) for figure in (_rate, _p50_ms, _p99_ms, _cpu_s)),
        *(_show(echo, figure) for figure in (_rate, _p99_ms, _cpu_s)),
        *(_ratio(server, echo, figure) for figure in (_rate, _cpu_s)),
        _show(cache, _cpu_s),
        _ratio(cache, server, _cpu_s),
    ]


def _ensemble_table(outcome: Outcome) -> Table:
    table = Table(
        title="The MLP as an ensemble of two steps, compared with its dearer step: the MLP alone",
        title_justify="left",
        caption="Both get the same requests. CPU/step and rate/step: the ensemble relative to the step.",
        caption_justify="left",
    )
    table.add_column("protocol")
    for heading in (
        "in flight",
        "req/s",
        "p50 ms",
        "CPU",
        "step req/s",
        "step p50",
        "step CPU",
        "rate/step",
        "CPU/step",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in outcome.points:
        if point.kind == "ensemble":
            step = outcome.point("server", point.protocol, point.in_flight)
            figures = [_show(each, figure) for each in (point, step) for figure in (_rate, _p50_ms, _cpu_s)]
            ratios = [_ratio(point, step, figure) for figure in (_rate, _cpu_s)]
            table.add_row(point.protocol, str(point.in_flight), *figures, *ratios)
    return table


def _rate(point: Point) -> float:
    return point.load.rate_per_s


def _p50_ms(point: Point) -> float:
    return point.load.p50_ms


def _p99_ms(point: Point) -> float:
    return point.load.p99_ms


def _cpu_s(point: Point) -> float:
    return point.cpu_s_per_1000


_FORMATS: Final[Mapping[Figure, str]] = {_rate: ",.0f", _p50_ms: ".2f", _p99_ms: ".2f", _cpu_s: ".3f"}


def _show(point: Point | None, figure: Figure) -> str:
    return "-" if point is None else format(figure(point), _FORMATS[figure])


def _ratio(point: Point | None, base: Point | None, figure: Figure) -> str:
    if point is None or base is None or figure(base) == 0:
        return "-"
    return f"{figure(point) / figure(base):.2f}"


def _goals_table(found: Sequence[Goal]) -> Table:
    table = Table(title="Goals (for a quiet 2-core machine)", title_justify="left")
    for heading in ("goal", "limit", "result", "verdict"):
        table.add_column(heading)
    for goal in found:
        got = "not measured" if goal.got is None else f"{goal.got:.3g}"
        verdict = "" if goal.reached is None else "reached" if goal.reached else "missed"
        table.add_row(goal.name, goal.wanted, got, verdict)
    return table


def _at_most(name: str, limit: float, unit: str, got: float | None) -> Goal:
    return Goal(name, f"<= {limit:g}{unit}", got, None if got is None else got <= limit)


def _cpu(outcome: Outcome, protocol: Protocol, limit: float) -> Goal:
    point = outcome.point("server", protocol, REACH_IN_FLIGHT)
    name = f"{protocol}, CPU-s per 1000, {REACH_IN_FLIGHT} in flight"
    return _at_most(name, limit, "", None if point is None else point.cpu_s_per_1000)


def _over_server(outcome: Outcome, limit: _Limit, protocol: Protocol, in_flight: int) -> Goal:
    server, other = (outcome.point(kind, protocol, in_flight) for kind in ("server", limit.kind))
    ratio = None if other is None or server is None else other.cpu_s_per_1000 / server.cpu_s_per_1000
    return _at_most(f"{limit.name}, {protocol}, {in_flight} in flight", limit.at_most, "", ratio)


def _lone_p50(outcome: Outcome, protocol: Protocol) -> Goal:
    point = outcome.point("server", protocol, 1)
    name = f"{protocol}, p50 with one in flight"
    return _at_most(name, MAX_LONE_P50_MS, " ms", None if point is None else point.load.p50_ms)


def _call_ratio(outcome: Outcome, goal: RatioGoal) -> Goal:
    ratio = cpu_ratio(outcome.calls, goal.size, goal.name, goal.base)
    name = f"{goal.name} of {goal.size}, CPU relative to {goal.base}"
    if not goal.is_minimum:
        return _at_most(name, goal.limit, "x", ratio)
    return Goal(name, f">= {goal.limit:g}x", ratio, None if ratio is None else ratio >= goal.limit)
