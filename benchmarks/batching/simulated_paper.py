"""Simulation of the TPU paper's Table 4 (Jouppi et al., ISCA 2017): the share of peak rate left by a limit of 7 ms."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.batching.simulated_grid import greedy_setting, objective_setting
from benchmarks.batching.simulation import Device, Setting, poisson, simulate

LIMIT_S = 7e-3
# Enough requests for a meaningful 99th percentile and for queues to settle.
_OBJECTIVES_A_PROBE = 60
_LEAST_REQUESTS = 10_000
_PROBES = 8


@dataclass(frozen=True, slots=True)
class Paper:
    """Two rows of the table, MLP0: the batch with a p99 of about 7 ms, and the largest measured batch."""

    device: Device
    batch: int
    p99_ms: float
    rate: float
    most: float

    @property
    def share(self) -> float:
        """Share of the largest rate."""
        return self.rate / self.most


# Batch costs derived from the table's rates.
TABLE_4 = (
    Paper(Device("CPU", 2.27e-3, 40.3e-6, 64, LIMIT_S), 16, 7.2, 5_482, 13_194),
    Paper(Device("GPU", 1.00e-3, 11.8e-6, 64, LIMIT_S), 16, 6.7, 13_461, 36_465),
    Paper(Device("TPU", 0.87e-3, 0.1e-6, 250, LIMIT_S), 200, 7.0, 225_000, 280_000),
)


@dataclass(frozen=True, slots=True)
class Row:
    """The paper's figures, and the highest simulated Poisson rates at which 99 % of responses take at most 7 ms."""

    paper: Paper
    at_batch: float
    greedy: float
    objective: float
    most: float
    overload: float


def measure(report: Callable[[str], None], probes: int = _PROBES) -> Iterator[Row]:
    """Find the highest rates of each device."""
    for paper in TABLE_4:
        device = paper.device
        most = device.max_rows / device.cost_s(device.max_rows)
        at_batch = Device(device.name, device.t0_s, device.per_row_s, paper.batch, LIMIT_S)
        report(f"{device.name}: batches up to {paper.batch} rows, up to {device.max_rows} rows, and an objective")
        times = poisson(2 * most, _count(2 * most), 1)
        yield Row(
            paper,
            _highest_rate(at_batch, greedy_setting(at_batch), probes),
            _highest_rate(device, greedy_setting(device), probes),
            _highest_rate(device, objective_setting(device), probes),
            most,
            simulate(device, objective_setting(device), times).goodput,
        )


def _count(rate: float) -> int:
    return max(_LEAST_REQUESTS, round(rate * LIMIT_S * _OBJECTIVES_A_PROBE))


def _highest_rate(device: Device, setting: Setting, probes: int) -> float:
    """Find the highest rate by bisection, to one part in 2^probes of the device's peak."""
    low, high = 0.0, device.max_rows / device.cost_s(device.max_rows)
    for _ in range(probes):
        rate = (low + high) / 2
        result = simulate(device, setting, poisson(rate, _count(rate), 1))
        low, high = (rate, high) if result.in_time >= 0.99 * result.offered else (low, rate)
    return low


def as_json(rows: list[Row]) -> list[dict[str, object]]:
    """Return all rows as JSON data, in requests per second."""
    return [{**asdict(row), "paper_share": row.paper.share} for row in rows]


def print_rows(rows: list[Row], console: Console) -> None:
    """Print the table and its explanation."""
    table = Table(title="TPU paper, Table 4: 99 % within 7 ms, share of the peak rate", title_justify="left")
    for column in (
        "",
        "largest rate",
        "paper",
        "paper's batch",
        "here, with the paper's batch",
        "greedy, any batch",
        "objective",
        "goodput of the objective at 200 %",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        shares = [
            f"{rate:,.0f} ({rate / row.most:.0%})" for rate in (row.at_batch, row.greedy, row.objective, row.overload)
        ]
        paper = f"{row.paper.rate:,.0f} ({row.paper.share:.0%})"
        table.add_row(row.paper.device.name, f"{row.most:,.0f}", paper, str(row.paper.batch), *shares)
    console.print(table)
    console.print(
        "A batch takes t0 + a * rows, derived from the paper's rates. The simulation excludes the time of the hosts,\n"
        "which delayed large batches in the paper. Compare only the ranking: a latency limit costs the TPU least.\n"
        "Allowed sizes are powers of two. The last column is the goodput at twice the largest rate."
    )
