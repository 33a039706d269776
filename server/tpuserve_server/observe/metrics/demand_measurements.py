"""Measurements of demand: the work that arrived, in relation to what the server can do."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tpuserve_server.core.batching.demand import DemandTotals
from tpuserve_server.core.batching.device_share import BusyTimes
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics import catalogue
from tpuserve_server.observe.metrics.series import OTHER, Counts, ModelPlaces, Places
from tpuserve_server.observe.metrics.server_measurements import ServerMeasurements

# Length of the window of the ratios. Longer than two scrapes of 15 s, so that each shows every burst.
WINDOW_S: Final = 30.0
_NONE: Final = DemandTotals()


class _Moment(NamedTuple):
    """Totals at one time, and the demand in seconds by model since the moment before it."""

    at_s: float
    by_model: Mapping[str, float]
    busy: BusyTimes
    loop_s: float | None
    is_starting: bool


class DemandMeasurements:
    """Totals of demand by model, which never fall, and the ratios of the last 30 seconds.

    One thread calls `sample`, and any thread reads. `_lock` guards the moments.
    """

    def __init__(self, server: ServerMeasurements, models: ModelPlaces) -> None:
        """Read the parts of `server`."""
        self._server = server
        self._lock = threading.Lock()
        # The oldest moment only begins the window.
        self._moments: deque[_Moment] = deque()
        self._totals: Mapping[ServableId, DemandTotals] = {}
        self._refused = 0
        self.seconds = Counts[tuple[str, Priority]](
            Places(
                catalogue.DEMAND_SECONDS.name, lambda key: key[0], lambda key, model: (model or OTHER, key[1]), models
            )
        )

    def sample(self, now_s: float, loop_s: float | None) -> None:
        """Read the demand up to now. `loop_s` is the busy time of the event loop, or None if it is unknown.

        It takes about 3 us for each version.
        """
        totals, refused = self._server.demand(), self._server.refused_unread()
        by_model = dict[str, float]()
        for (model, priority), seconds in self._since(totals, refused - self._refused).items():
            by_model[model] = by_model.get(model, 0.0) + seconds
            self.seconds.add((model, priority), seconds)
        self._totals, self._refused = totals, refused
        is_starting = self._server.is_starting()
        with self._lock:
            if self._moments and self._moments[-1].is_starting and not is_starting:
                # The event loop's work of the start is no demand.
                self._moments.clear()
            self._moments.append(_Moment(now_s, by_model, self._server.busy_times(), loop_s, is_starting))
            while len(self._moments) > 2 and now_s - self._moments[1].at_s >= WINDOW_S:
                self._moments.popleft()

    # Read by the metrics page.

    def ratio(self) -> float:
        """Return the ratio of the server, or 0 before the second sample."""
        moments = self._window()
        if len(moments) < 2:
            return 0.0
        first, last = moments[0], moments[-1]
        duration_s = last.at_s - first.at_s
        wanted_s = sum(sum(moment.by_model.values()) for moment in moments[1:])
        any_s, models_s = last.busy.any_s - first.busy.any_s, last.busy.models_s - first.busy.models_s
        # Runs of several models that overlap delay each other, and so each has learned too high a cost.
        device = wanted_s / duration_s / (models_s / any_s if any_s > 0 else 1.0)
        # A start has no end while a model lacks its files, and the other models serve meanwhile.
        if last.is_starting or first.loop_s is None or last.loop_s is None:
            return device
        return max(device, (last.loop_s - first.loop_s) / duration_s)

    def model_ratios(self) -> dict[str, float]:
        """Return the ratio of each model with requests since the start."""
        moments = self._window()
        if len(moments) < 2:
            return {}
        duration_s = moments[-1].at_s - moments[0].at_s
        wanted_s = {model: 0.0 for model, _ in self.seconds.all()}
        for moment in moments[1:]:
            for model, seconds in moment.by_model.items():
                # A model beyond the limit of models counts under another name.
                name = model if model in wanted_s else OTHER
                wanted_s[name] = wanted_s.get(name, 0.0) + seconds
        return {model: seconds / duration_s for model, seconds in wanted_s.items()}

    def loop_s(self) -> float | None:
        """Return the busy time of the event loop in seconds, or None if it is unknown."""
        moments = self._window()
        return moments[-1].loop_s if moments else None

    def _window(self) -> Sequence[_Moment]:
        with self._lock:
            return list(self._moments)

    def _since(self, totals: Mapping[ServableId, DemandTotals], refused: int) -> dict[tuple[str, Priority], float]:
        """Return the seconds since the last sample.

        Requests that were refused before their model was known count as the others of this time, or of all time, and
        with high priority.
        """
        new = {id_: _minus(now, self._totals.get(id_, _NONE)) for id_, now in totals.items()}
        counted = new if any(change.requests for change in new.values()) else totals
        requests = sum(each.requests for each in counted.values())
        seconds: dict[tuple[str, Priority], float] = {}
        for id_, change in new.items():
            unread_s = refused * counted[id_].requests / requests * change.mean_s if requests else 0.0
            for priority, needed_s in ((Priority.HIGH, change.high_s + unread_s), (Priority.LOW, change.low_s)):
                if needed_s:
                    seconds[id_.name, priority] = seconds.get((id_.name, priority), 0.0) + needed_s
        return seconds


def _minus(now: DemandTotals, before: DemandTotals) -> DemandTotals:
    """Return the difference, with the mean of now. A version that was loaded again counts from 0."""
    if now.requests < before.requests:
        return now
    return DemandTotals(
        now.high_s - before.high_s, now.low_s - before.low_s, now.requests - before.requests, now.mean_s
    )
