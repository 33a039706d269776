"""The scripted server's log: one line of JSON for each prediction, and its figures, which are the truth of a run."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

OK = "ok"


@dataclass(slots=True)
class Entry:
    """A prediction. Times are the monotonic clock's seconds, which all processes of a machine share.

    `arrived_s` is the time when the last byte was read, `due_s` the scripted end, and `finished_s` the time just before
    the response was written. `status` is `ok`, a kind of wrong response or of fault, `abandoned` if the client left
    first, or empty while the request is pending. Requests with the same bytes have the same `digest`.
    """

    number: int
    protocol: str
    model: str
    connection: int
    arrived_s: float
    service_s: float
    due_s: float
    finished_s: float = 0.0
    status: str = ""
    digest: int = 0

    @property
    def latency_s(self) -> float:
        """The time from arrival to response."""
        return self.finished_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class Log:
    """Entries in the order of arrival."""

    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, path: Path) -> "Log":
        """Read the file that `write` wrote."""
        return cls(tuple(Entry(**json.loads(line)) for line in path.read_text().splitlines()))

    def write(self, path: Path) -> None:
        """Write a line for each entry."""
        path.write_text("".join(f"{json.dumps(asdict(entry))}\n" for entry in self.entries))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, part: slice) -> "Log":
        return Log(self.entries[part])

    def where(self, holds: Callable[[Entry], bool]) -> "Log":
        """Return the entries for which `holds` is true."""
        return Log(tuple(filter(holds, self.entries)))

    def of(self, protocol: str, model: str) -> "Log":
        """Return the entries of a protocol and of a model, or of all models for an empty string."""
        return self.where(lambda entry: entry.protocol == protocol and model in ("", entry.model))

    def on(self, connection: int) -> "Log":
        """Return the entries of a connection."""
        return self.where(lambda entry: entry.connection == connection)

    @property
    def ok(self) -> "Log":
        """The correct responses."""
        return self.where(lambda entry: entry.status == OK)

    @property
    def failed(self) -> int:
        """The number of predictions without a correct response."""
        return len(self) - len(self.ok)

    @property
    def statuses(self) -> Counter[str]:
        """Counts by status."""
        return Counter(entry.status for entry in self.entries)

    @property
    def lateness_ms(self) -> float:
        """The p99 delay of the server's own responses after their scripted time, which shows a busy machine."""
        late = [entry.finished_s - entry.due_s for entry in self.entries if entry.status == OK]
        return 1000 * percentile(late, 99) if late else 0.0

    def rate_per_s(self, from_s: float, seconds: float) -> float:
        """Return the rate of correct responses in `seconds`, from `from_s` after the first arrival."""
        start_s = self.entries[0].arrived_s + from_s
        return sum(0 <= entry.finished_s - start_s <= seconds for entry in self.ok.entries) / seconds

    def latencies_ms(self) -> list[float]:
        """Return the latencies of correct responses, from arrival to response."""
        return [1000 * entry.latency_s for entry in self.ok.entries]

    def latencies_from_ms(self, planned_s: Sequence[float], skipped: int = 0) -> list[float]:
        """Return the latencies of correct responses from planned arrivals, without the first `skipped` requests.

        `planned_s` counts from an unknown start. Arrivals keep their order, so request number i of the log belongs to
        planned arrival i. No request can arrive before its planned time. The latest start for which this holds exceeds
        the real one by the shortest delay of a request.
        """
        delays = self._delays_s(planned_s)
        start_s = min(delays)
        return [
            1000 * (delay_s - start_s + entry.latency_s)
            for entry, delay_s in list(zip(self.entries, delays, strict=True))[skipped:]
            if entry.status == OK
        ]

    def latencies_of_two_ms(self, planned_s: Sequence[float]) -> list[float]:
        """Return `latencies_from_ms` of two senders: each has a connection, a start and half of the plan."""
        halves = planned_s[::2], planned_s[1::2]
        one, two = (self.on(number) for number in sorted({entry.connection for entry in self.entries}))
        # The arrivals fit only their own sender's half of the plan.
        fit = min(
            ((one, two), (two, one)), key=lambda pair: pair[0]._spread_s(halves[0]) + pair[1]._spread_s(halves[1])
        )
        return [latency for log, half in zip(fit, halves, strict=True) for latency in log.latencies_from_ms(half)]

    def _delays_s(self, planned_s: Sequence[float]) -> list[float]:
        return [entry.arrived_s - at_s for entry, at_s in zip(self.entries, planned_s, strict=True)]

    def _spread_s(self, planned_s: Sequence[float]) -> float:
        if len(planned_s) != len(self):
            return math.inf
        delays = self._delays_s(planned_s)
        return max(delays) - min(delays)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that `percent` percent of the values do not exceed (nearest rank)."""
    ordered = np.sort(np.fromiter(values, np.float64))
    return float(ordered[max(math.ceil(len(ordered) * percent / 100 - 1e-9), 1) - 1])
