"""A server's own view of loads, from its metrics pages before, during and after each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from tpuserve_loadtests.monitoring.energy import EnergyFound
from tpuserve_loadtests.monitoring.metrics_page import (
    Buckets,
    Figures,
    NoPage,
    Page,
    Served,
    memory_bytes,
    read_figures,
    start_time_s,
)
from tpuserve_loadtests.monitoring.process_use import ProcessUse


@dataclass(frozen=True, slots=True)
class Scrape:
    """A page at `at_s` seconds after the start of the measured time."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of request processing, in milliseconds. The percentiles are as exact as the server's buckets.

    `request` (the total time in the server) and `queue wait` count requests. `execution` counts batches. The server
    does not distinguish times below `least_ms`.
    """

    name: str
    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    least_ms: float


@dataclass(frozen=True, slots=True)
class Moment:
    """The server's metrics in `seconds` from `at_s` on, counted from the end of the warm-up; None if not reported.

    `executing` is the mean number of batches on the device. `busy` is the share of time with a program on the device,
    by device.
    """

    at_s: float
    seconds: float
    rate_per_s: float
    queue_ms: float | None
    execution_ms: float | None
    batch_rows: float | None
    padding_share: float | None
    executing: float | None
    cpu_cores: float | None
    memory_bytes: float | None
    busy: Mapping[str, float]
    refused_per_s: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """A server's counters for the measured `seconds` of a run, and its process memory at each page, in bytes."""

    served: Served
    counted: Page
    seconds: float
    memory: tuple[float, ...]
    timeline: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class ServerSide:
    """The server's view of the measured part of one or more runs. Missing metrics are None or empty.

    `execution_ms` is the mean device time of a request, which is the whole time of its batch. `batch_rows` is the mean
    number of real rows in a batch. `padding_share` is the mean share of padding. `answers` are by code, `refused` by
    the server's reasons. `cached_share` is the share of requests that the server's response cache answered.
    `peak_memory_bytes` is the highest observed memory of the process. Several runs have no timeline. `version` is that
    of the server program.
    """

    phases: tuple[Phase, ...]
    execution_ms: float | None
    batch_rows: float | None
    padding_share: float | None
    executing: float | None
    answers: Mapping[str, int]
    refused: Mapping[str, int]
    cached_share: float | None
    cpu_cores: float | None
    memory_bytes: float | None
    peak_memory_bytes: float | None
    busy: Mapping[str, float]
    timeline: tuple[Moment, ...]
    version: str = ""

    def phase(self, name: str) -> Phase | None:
        """Return the phase with a name, or None if the server does not report it."""
        return next((phase for phase in self.phases if phase.name == name), None)


@dataclass(slots=True)
class Seen:
    """The observations of a server after a run: a `stretch`, or a `note` with the reason, and the use of its processes.

    `energy` is that of the server's machine. All are empty if nothing was watched.
    """

    stretch: Stretch | None = None
    note: str = ""
    use: ProcessUse | None = None
    energy: EnergyFound = None


def read_stretch(scrapes: Sequence[Scrape], served: Served) -> Stretch:
    """Compare the pages of a run, of which the first is from the end of the warm-up.

    Raises NoPage if the pages cannot be compared.
    """
    if len(scrapes) < 2:
        raise NoPage("too few metrics pages for a comparison")
    pages = [Page.parse(scrape.text) for scrape in scrapes]
    if _restarted(pages):
        raise NoPage("the server restarted during the load and lost its counters")
    spans_s = [later.at_s - earlier.at_s for earlier, later in pairwise(scrapes)]
    counted = [read_figures(later.since(earlier), served) for earlier, later in pairwise(pages)]
    timeline = tuple(
        _moment(scrape.at_s, span_s, figures, page)
        for scrape, span_s, figures, page in zip(scrapes, spans_s, counted, pages[1:], strict=False)
        if span_s > 0
    )
    memory = tuple(size for page in pages if (size := memory_bytes(page)) is not None)
    return Stretch(served, pages[-1].since(pages[0]), sum(spans_s), memory, timeline)


def draw_server_side(stretches: Sequence[Stretch]) -> ServerSide:
    first, *others = stretches
    figures = read_figures(reduce(Page.plus, (one.counted for one in others), first.counted), first.served)
    span_s = sum(one.seconds for one in stretches)
    memory = [size for one in stretches for size in one.memory]
    phases = (("request", figures.request), ("queue wait", figures.queue), ("execution", figures.run))
    return ServerSide(
        phases=tuple(_phase(name, buckets) for name, buckets in phases if buckets.count),
        execution_ms=_execution_ms(figures),
        batch_rows=figures.rows,
        padding_share=figures.padding_share,
        executing=_executing(figures, span_s),
        answers={name: int(count) for name, count in figures.answers.items()},
        refused={name: int(count) for name, count in figures.refused.items()},
        cached_share=figures.cached_share,
        cpu_cores=None if figures.cpu_s is None else figures.cpu_s / span_s,
        memory_bytes=memory[-1] if memory else None,
        peak_memory_bytes=max(memory, default=None),
        busy={device: busy_s / span_s for device, busy_s in figures.busy_s.items()},
        timeline=() if others else first.timeline,
        version=next(iter(first.counted.totals("tpuserve_build_info", "version")), ""),
    )


def _moment(at_s: float, span_s: float, figures: Figures, page: Page) -> Moment:
    return Moment(
        at_s=at_s,
        seconds=span_s,
        rate_per_s=sum(figures.answers.values()) / span_s,
        queue_ms=figures.queue.mean,
        execution_ms=_execution_ms(figures),
        batch_rows=figures.rows,
        padding_share=figures.padding_share,
        executing=_executing(figures, span_s),
        cpu_cores=None if figures.cpu_s is None else figures.cpu_s / span_s,
        memory_bytes=memory_bytes(page),
        busy={device: busy_s / span_s for device, busy_s in figures.busy_s.items()},
        refused_per_s=sum(figures.refused.values()) / span_s,
    )


def _phase(name: str, buckets: Buckets) -> Phase:
    mean, p50, p99 = buckets.mean, buckets.percentile(50), buckets.percentile(99)
    assert mean is not None
    assert p50 is not None
    assert p99 is not None
    return Phase(name, int(buckets.count), mean, p50, p99, buckets.least)


def _execution_ms(figures: Figures) -> float | None:
    """Return a request's mean device time: its time until the batch's end, minus its time until the batch's start.

    A mean over batches would differ, because most requests are in large batches. It is the fallback if the server's
    metrics cover different requests, such as several versions or models.
    """
    both, queue = figures.queue_and_run, figures.queue
    if both.mean is not None and queue.mean is not None and both.count == queue.count:
        return max(both.mean - queue.mean, 0.0)
    if figures.run.count:
        return figures.run.mean
    return None if queue.count else both.mean


def _executing(figures: Figures, span_s: float) -> float | None:
    return figures.run.total / 1000 / span_s if figures.run.count else None


def _restarted(pages: Sequence[Page]) -> bool:
    """Return whether the pages come from several processes.

    Their start times differ or, if the pages have none, counts decrease. In tpuserve, which reports start times, a
    version's counts disappear with the version. In TensorFlow Serving, they remain.
    """
    starts = {start_time_s(page) for page in pages}
    if starts != {None}:
        return len(starts) > 1
    totals = [sum(value for (name, _), value in page.values.items() if name.endswith("_count")) for page in pages]
    return any(later < earlier for earlier, later in pairwise(totals))
