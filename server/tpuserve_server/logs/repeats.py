"""RepeatLimit: suppresses events that repeat too often, and counts them."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MOST_PER_PERIOD = 10
PERIOD_S = 60.0
# Number of events to remember. Clients and models can cause many different ones.
_MOST_EVENTS = 256


class EventKind(NamedTuple):
    """Events that count as repeats: those with the same logger, level and message before its arguments."""

    logger: str
    level: int
    template: str


class Suppressed(NamedTuple):
    """Number of events of a kind that were suppressed within a period."""

    kind: EventKind
    repeats: int
    period_s: float


@dataclass(slots=True)
class _Period:
    ends_s: float
    count: int = 0


class RepeatLimit:
    """Admits some events of each kind in each period. The caller's lock guards all calls. Times are monotonic."""

    def __init__(self, most: int = MOST_PER_PERIOD, period_s: float = PERIOD_S) -> None:
        """Admit `most` events of a kind in a period, which begins with the first of them."""
        self._most = most
        self._period_s = period_s
        # In the order of their ends, because all are of the same length.
        self._periods: OrderedDict[EventKind, _Period] = OrderedDict()
        self._forgotten: list[Suppressed] = []

    def admits(self, kind: EventKind, now_s: float) -> bool:
        """Count an event, and return whether to write it. Call `take_ended` first."""
        period = self._periods.get(kind)
        if period is None:
            if len(self._periods) == _MOST_EVENTS:
                self._forgotten += self._end(next(iter(self._periods)))
            self._periods[kind] = period = _Period(now_s + self._period_s)
        period.count += 1
        return period.count <= self._most

    def take_ended(self, now_s: float) -> list[Suppressed]:
        """Forget the periods that have ended. Return those in which events were suppressed."""
        ended, self._forgotten = self._forgotten, []
        while self._periods and next(iter(self._periods.values())).ends_s <= now_s:
            ended += self._end(next(iter(self._periods)))
        return ended

    def take_all(self) -> list[Suppressed]:
        """Forget all periods. Return those in which events were suppressed."""
        return self.take_ended(float("inf"))

    def ends_s(self) -> float | None:
        """Return when the first period with suppressed events ends, or None if there is none."""
        return next((period.ends_s for period in self._periods.values() if period.count > self._most), None)

    def _end(self, kind: EventKind) -> Iterator[Suppressed]:
        count = self._periods.pop(kind).count - self._most
        if count > 0:
            yield Suppressed(kind, count, self._period_s)
