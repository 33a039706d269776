"""A latency objective next to greedy batching and to fixed timeouts and sizes, on simulated devices at many loads."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.batching.simulation import Arrivals, Device, Result, Setting, bursts, poisson, simulate
from tpuserve_server.core.batching.parameters import BatchingOptions, LatencyObjective

# Settings that an operator could choose instead: the largest batch (each allowed size), its timeout (shares of the
# objective), and the queue length in batches. A short queue of the right length refuses requests that would be late.
_TIMEOUTS = (0.0, 0.1, 0.5)
_QUEUES = (1, 2, 512)

LEAST_SHARE_OF_BEST = 0.95
LEAST_SHARE_OF_PEAK = 0.90
STEADY_LOAD = 0.9


def shapes(jitter: float) -> tuple[Device, ...]:
    """Return devices with three cost shapes: mostly fixed, mixed, and mostly per row."""
    return (
        Device("accelerator, 2 ms + 0.01 ms per row", 2e-3, 1e-5, 64, 7e-3, jitter),
        Device("medium, 5 ms + 0.05 ms per row", 5e-3, 5e-5, 256, 20e-3, jitter),
        Device("CPU, 1 ms + 0.5 ms per row", 1e-3, 5e-4, 64, 40e-3, jitter),
    )


@dataclass(frozen=True, slots=True)
class Point:
    """Results of one device at one load: the objective, greedy batching, and the best setting of the grid."""

    device: Device
    arrivals: str
    load: float
    objective: Result
    greedy: Result
    best: Result
    best_name: str

    @property
    def ratio(self) -> float:
        """Goodput of the objective over that of the best fixed setting for this load."""
        return self.objective.goodput / self.best.goodput


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, and the worst figure found."""

    name: str
    wanted: str
    got: float
    reached: bool


def measure(
    devices: tuple[Device, ...], loads: tuple[float, ...], count: int, report: Callable[[str], None]
) -> Iterator[Point]:
    """Simulate every device at every load with even and bursty arrivals, `count` requests each."""
    for device in devices:
        processes: Mapping[str, Arrivals] = {"Poisson": poisson, "bursts": bursts(device.latency_s)}
        for name, arrivals in processes.items():
            for load in loads:
                report(f"{device.name}, {name}, {load:.0%} of capacity")
                yield _measure(device, name, load, arrivals(load * device.capacity, count, 1))


def _measure(device: Device, arrivals: str, load: float, times: list[float]) -> Point:
    fixed = {setting.name: simulate(device, setting, times) for setting in fixed_settings(device)}
    greedy = simulate(device, greedy_setting(device), times)
    best = max(fixed, key=lambda name: fixed[name].goodput)
    return Point(device, arrivals, load, simulate(device, objective_setting(device), times), greedy, fixed[best], best)


def objective_setting(device: Device) -> Setting:
    """Return a setting with only the objective."""
    objective = LatencyObjective(device.latency_s)
    return Setting("objective", BatchingOptions(device.max_rows, device.sizes, objective=objective))


def greedy_setting(device: Device) -> Setting:
    """Return the default setting."""
    return Setting("greedy", BatchingOptions(device.max_rows, device.sizes), 512)


def fixed_settings(device: Device) -> Iterator[Setting]:
    """Yield the settings of the grid."""
    for rows in device.sizes:
        sizes = tuple(size for size in device.sizes if size <= rows)
        for timeout in _TIMEOUTS:
            options = BatchingOptions(rows, sizes, timeout_s=timeout * device.latency_s)
            for queue in _QUEUES:
                yield Setting(f"{rows} rows, {options.timeout_s * 1000:g} ms, queue of {queue}", options, queue)


def goals(points: list[Point]) -> list[Goal]:
    """Compare these points with the goals."""
    steady = [point for point in points if point.load <= STEADY_LOAD + 1e-9]
    even = [point.objective for point in steady if point.arrivals == "Poisson"]
    slowest = max(point.objective.p99_s / point.device.latency_s for point in steady)
    fewest = min(result.in_time / result.offered for result in even)
    ratio = min(point.ratio for point in points)
    found = [
        Goal(
            f"p99 of responses relative to the objective, up to {STEADY_LOAD:.0%}",
            "at most 1",
            slowest,
            slowest <= 1,
        ),
        Goal(
            f"share of all requests that is in time, Poisson, up to {STEADY_LOAD:.0%}",
            "at least 0.99",
            fewest,
            fewest >= 0.99,
        ),
        Goal(
            "goodput relative to the best fixed setting",
            "at least 0.95",
            ratio,
            ratio >= LEAST_SHARE_OF_BEST,
        ),
    ]
    overload = [point for point in points if point.load == max(point.load for point in points)]
    if overload and overload[0].load >= 2:
        share = min(point.objective.goodput / _peak(point, points) for point in overload)
        found.append(Goal("goodput at 200 % relative to its peak", "at least 0.9", share, share >= LEAST_SHARE_OF_PEAK))
    return found


def _peak(point: Point, points: list[Point]) -> float:
    same = [other for other in points if (other.device, other.arrivals) == (point.device, point.arrivals)]
    return max(other.objective.goodput for other in same)


def as_json(points: list[Point]) -> dict[str, object]:
    """Return all points and goals as JSON data, in seconds and requests."""
    return {
        "points": [{**asdict(point), "capacity": point.device.capacity, "ratio": point.ratio} for point in points],
        "goals": [asdict(goal) for goal in goals(points)],
    }


def print_points(points: list[Point], console: Console) -> None:
    """Print a table for each device and arrival process, and the goals."""
    for device, arrivals in dict.fromkeys((point.device, point.arrivals) for point in points):
        table = Table(
            title=f"{device.name}, {arrivals}: objective {device.latency_s * 1000:g} ms, capacity "
            f"{device.capacity:,.0f}/s",
            title_justify="left",
        )
        for column in (
            "load",
            "goodput",
            "best fixed",
            "ratio",
            "greedy",
            "p99 ms",
            "greedy p99 ms",
            "in time",
            "refused",
        ):
            table.add_column(column, justify="right")
        table.add_column("best fixed setting")
        for point in points:
            if (point.device, point.arrivals) == (device, arrivals):
                table.add_row(*_cells(point))
        console.print(table)
    table = Table(title="Goals", title_justify="left")
    for column in ("goal", "limit", "result", "verdict"):
        table.add_column(column)
    for goal in goals(points):
        table.add_row(goal.name, goal.wanted, f"{goal.got:.3f}", "reached" if goal.reached else "MISSED")
    console.print(table)


def _cells(point: Point) -> list[str]:
    result, best, greedy = point.objective, point.best, point.greedy
    return [
        f"{point.load:.0%}",
        f"{result.goodput:,.0f}",
        f"{best.goodput:,.0f}",
        f"{point.ratio:.3f}",
        f"{greedy.goodput:,.0f}",
        f"{result.p99_s * 1000:.1f}",
        f"{greedy.p99_s * 1000:.1f}",
        f"{result.in_time / result.offered:.1%}",
        f"{result.refused / result.offered:.1%}",
        point.best_name,
    ]
