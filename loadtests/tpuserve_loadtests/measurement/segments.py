"""A load of hours in segments: figures of each, all of them merged, nothing else kept."""

from dataclasses import dataclass, replace

from tpuserve_loadtests.measurement.measured import Measured


@dataclass(frozen=True, slots=True)
class Segment:
    """What one segment came to. `at_s`: its middle, from the first one's start. None where nothing was answered.

    `memory_bytes`: the server's, at the segment's end; None where it was not told.
    """

    at_s: float
    seconds: float
    requests: int
    failures: int
    rate_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    memory_bytes: float | None

    @property
    def error_rate(self) -> float:
        """The share of requests that failed; 0 of none."""
        return self.failures / self.requests if self.requests else 0.0


class Segments:
    """Takes segments as they end. Its memory does not grow but for a few figures of each."""

    def __init__(self) -> None:
        self.done: list[Segment] = []
        self.total: Measured | None = None
        self._cores_s: tuple[float, ...] = ()

    def add(self, measured: Measured, memory_bytes: float | None) -> Segment:
        """The next segment. One that was stopped counts in the total only: its figures are of fewer requests."""
        start_s = self.total.span_s if self.total else 0.0
        line = measured.total.summary("total", measured.rate_per_s)
        segment = Segment(
            at_s=start_s + measured.span_s / 2,
            seconds=measured.span_s,
            requests=line.requests,
            failures=line.failures,
            rate_per_s=line.rate_per_s,
            p50_ms=line.p50_ms,
            p99_ms=line.p99_ms,
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
        # Windows of the same number within their segments come together: the total is right, its timeline is none.
        self.total.recorder.add(measured.recorder)
        span_s = self.total.span_s + measured.span_s
        cores = tuple(each / span_s for each in self._cores_s) if span_s else measured.cores
        self.total = replace(self.total, span_s=span_s, cores=cores, stopped=measured.stopped, lost=measured.lost)
