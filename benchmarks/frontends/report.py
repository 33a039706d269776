"""Report of the benchmark of front-end processes: CPU by process and thread, limits, and the engine alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.frontends.measured_engine import EngineTime
from benchmarks.frontends.points import FrontEndPoint

MAX_ENGINE_US: Final = 6.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of one run. `load_before` is the machine's 1-minute load average before the run."""

    duration_s: int
    cores: int
    load_before: float
    points: tuple[FrontEndPoint, ...]
    engines: tuple[EngineTime, ...]

    @property
    def judged(self) -> EngineTime:
        """The engine with the most requests in flight: its limit counts, because fewer would not keep it busy."""
        return max(self.engines, key=lambda each: each.drivers * each.in_flight)


def verdict(engine: EngineTime) -> Literal["reached", "missed"]:
    """Return whether the serial time of the engine is within the limit."""
    return "reached" if engine.serial_us <= MAX_ENGINE_US else "missed"


def as_json(outcome: Outcome) -> dict[str, object]:
    """Return the outcome as JSON data: CPU in microseconds a request, rates in requests per second."""
    judged = outcome.judged
    return {
        "duration_s": outcome.duration_s,
        "cores": outcome.cores,
        "load_before": outcome.load_before,
        "points": [_point_json(point) for point in outcome.points],
        "engines": [_engine_json(engine) for engine in outcome.engines],
        "limits": [
            {"name": _LIMIT_NAME, "limit_us": MAX_ENGINE_US, "serial_us": judged.serial_us, "verdict": verdict(judged)}
        ],
    }


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print the tables."""
    if outcome.points:
        console.print(_threads_table(outcome))
        console.print(_scaling_table(outcome))
    console.print(_engines_table(outcome))
    judged = outcome.judged
    console.print(
        f"{_LIMIT_NAME}: {judged.serial_us:.2f} us ({judged.limit_per_s:,.0f} requests/s), limit {MAX_ENGINE_US:g} us "
        f"({1e6 / MAX_ENGINE_US:,.0f} requests/s): {verdict(judged)}",
        highlight=False,
        soft_wrap=True,
    )


_LIMIT_NAME: Final = "Serial time of the engine alone, most requests in flight"


def _point_json(point: FrontEndPoint) -> dict[str, object]:
    return asdict(point) | {
        "rate_per_s": point.load.rate_per_s,
        "serial_us": point.serial_us,
        "limit_per_s": point.limit_per_s,
        "front_end_us": point.front_end_us,
        "enough_front_ends": point.enough_front_ends,
    }


def _engine_json(engine: EngineTime) -> dict[str, object]:
    return asdict(engine) | {"serial_us": engine.serial_us, "limit_per_s": engine.limit_per_s}


def _threads_table(outcome: Outcome) -> Table:
    table = _table(
        f"CPU of a request in us, by process and thread. MLP 64-128-10, one row per request, "
        f"{outcome.duration_s} s per measurement, {outcome.cores} cores, shared with the load generator, load average "
        f"before the run: {outcome.load_before:.1f}",
        "All front-ends together. Device: joins and splits batches, and runs the model. Worker: Envoy parses HTTP.",
        ("protocol", "process"),
        ("front-ends", "in flight", "loop", "device", "worker", "other", "total"),
    )
    for point in outcome.points:
        for role, cost in point.costs.items():
            if role != "supervisor":
                parts = (cost.loop_us, cost.device_us, cost.worker_us, cost.other_us, cost.total_us)
                figures = [str(point.frontends), str(point.in_flight), *(f"{part:.1f}" for part in parts)]
                table.add_row(point.protocol, role, *figures)
    return table


def _scaling_table(outcome: Outcome) -> Table:
    table = _table(
        "Scaling",
        "Serial: loop and device threads of the process with the models, which share Python's lock. Limit: rate at "
        "which they are always busy. Front-end: the busier of its loop and Envoy's worker. Enough: front-ends that "
        "reach the limit, with cores for all. Generator: cores that the load generator used.",
        ("protocol",),
        (
            "front-ends",
            "in flight",
            "req/s",
            "p50 ms",
            "p99 ms",
            "serial",
            "limit/s",
            "front-end",
            "enough",
            "generator",
        ),
    )
    for point in outcome.points:
        load = point.load
        table.add_row(
            point.protocol,
            str(point.frontends),
            str(point.in_flight),
            f"{load.rate_per_s:,.0f}",
            f"{load.p50_ms:.2f}",
            f"{load.p99_ms:.2f}",
            f"{point.serial_us:.1f}",
            f"{point.limit_per_s:,.0f}",
            _shown(point.front_end_us),
            _shown(point.enough_front_ends),
            f"{load.generator_cores:.2f}",
        )
    return table


def _engines_table(outcome: Outcome) -> Table:
    table = _table(
        "Engine alone: CPU of a request in us, without Envoy, with a device that answers at once",
        "Drivers: processes that send requests as front-ends do. Batch: requests a batch, on average.",
        (),
        ("drivers", "in flight", "batch", "loop", "device", "serial", "limit/s", "req/s"),
    )
    for each in outcome.engines:
        table.add_row(
            str(each.drivers),
            f"{each.drivers} x {each.in_flight}",
            f"{each.batch_requests:.0f}",
            f"{each.loop_us:.2f}",
            f"{each.device_us:.2f}",
            f"{each.serial_us:.2f}",
            f"{each.limit_per_s:,.0f}",
            f"{each.rate_per_s:,.0f}",
        )
    return table


def _table(title: str, caption: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for heading in names:
        table.add_column(heading)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"
