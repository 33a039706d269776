"""Segments of a long load. Only the figures of each segment and their merged total stay in memory."""

from dataclasses import dataclass, replace

from tpuserve_loadtests.measurement.measured import Measured


@dataclass(frozen=True, slots=True)
class Segment:
    """The figures of one segment.

    `at_s` is its middle, in seconds from the start of the first segment. Latencies are None without a successful
    response. `memory_bytes` is the server's memory at the segment's end, or None if the server does not report it.
    """

    at_s: float
    seconds: float
    requests: int
    failures: int
    rate_per_s: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    max_ms: float | None
    memory_bytes: float | None

    @property
    def error_rate(self) -> float:
        """The share of requests that failed, 0 without requests."""
        return self.failures / self.requests if self.requests else 0.0


class Segments:
    """Collector of finished segments, which keeps only a few figures of each."""

    def __init__(self) -> None:
        self.done: list[Segment] = []
        self.total: Measured | None = None
        self._cores_s: tuple[float, ...] = ()

    def add(self, measured: Measured, memory_bytes: float | None) -> Segment:
        """Add the next segment.

        A stopped segment counts only in the total, because its figures cover fewer requests.
        """
        start_s = self.total.span_s if self.total else 0.0
        line = measured.total.summary("total", measured.rate_per_s)
        segment = Segment(
            at_s=start_s + measured.span_s / 2,
            seconds=measured.span_s,
            requests=line.requests,
            failures=line.failures,
            rate_per_s=line.rate_per_s,
            p50_ms=line.p50_ms,
            p95_ms=line.p95_ms,
            p99_ms=line.p99_ms,
            p99_9_ms=line.p99_9_ms,
            max_ms=line.max_ms,
            memory_bytes=memory_bytes,
        )
        if not measured.stopped:
            self.done.append(segment)
        self._merge(measured)
        return segment

    def _merge(self, measured: Measured) -> None:
        used_s = tuple(cores * measured.span_s for cores in measured.cores)
        if self.total is None:
            self._cores_s = used_s
            self.total = measured
            return
        self._cores_s = tuple(map(sum, zip(self._cores_s, used_s, strict=True)))
        # This merges windows by their number within a segment. The total is right, but it has no timeline.
        self.total.recorder.add(measured.recorder)
        span_s = self.total.span_s + measured.span_s
        cores = tuple(each / span_s for each in self._cores_s) if span_s else measured.cores
        self.total = replace(self.total, span_s=span_s, cores=cores, stopped=measured.stopped, lost=measured.lost)
