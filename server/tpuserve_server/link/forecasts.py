"""Forecasts: a front-end refuses requests that would be late before it decodes them, by forecasts of the engine.

For a second after each late request, a front-end asks for a forecast of its version every 20 ms.
"""

import asyncio
import marshal
import pickle
from typing import Final

from tpuserve_server.core.batching.finish_forecast import FinishForecast
from tpuserve_server.core.batching.refusals import REFUSES_FOR_S
from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import TooLate
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.priority import Priority
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.messages import Kind

_PERIOD_S: Final = 0.02


class Forecasts:
    """Keeps the forecasts of versions with late requests up to date. The event loop's thread owns it."""

    def __init__(self, connection: Connection, clock: Clock, metrics: Metrics) -> None:
        """Ask over `connection`. The caller registers `on_forecasts` for Kind.FORECASTS. `metrics` count refusals."""
        self.clock = clock
        self.metrics = metrics
        self._connection = connection
        self._refusals: dict[int, RemoteRefusals] = {}
        # The engine has not answered the last question.
        self._is_asked = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, refusals: "RemoteRefusals") -> None:
        """Keep the forecast of a version up to date for a while from now on, because a request was late."""
        refusals.until_s = self.clock.monotonic_s() + REFUSES_FOR_S
        self._refusals[refusals.key] = refusals
        if self._timer is None:
            self._ask()

    def on_forecasts(self, payload: memoryview) -> None:
        """Adopt the answer to a question."""
        self._is_asked = False
        found: dict[int, FinishForecast] = pickle.loads(payload)
        for key, forecast in found.items():
            if key in self._refusals:
                self._refusals[key].latest = forecast

    def _ask(self) -> None:
        now_s = self.clock.monotonic_s()
        for refusals in [one for one in self._refusals.values() if one.until_s <= now_s]:
            refusals.until_s, refusals.latest = 0.0, None
            del self._refusals[refusals.key]
        self._timer = None
        if not self._refusals or not self._connection.is_open:
            return
        if not self._is_asked:
            self._is_asked = True
            self._connection.send(Kind.ASK_FORECASTS, marshal.dumps(list(self._refusals)))
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._ask)


class RemoteRefusals:
    """Implements Refusing for the version with a key. `latest` is its forecast, and `until_s` the end of its checks."""

    def __init__(self, key: int, forecasts: Forecasts) -> None:
        """Check nothing before the first late request."""
        self.key = key
        self.until_s = 0.0
        self.latest: FinishForecast | None = None
        self._forecasts = forecasts

    @property
    def is_active(self) -> bool:
        """Whether a request has been late within the last second, or is expected to be."""
        return self.until_s > 0.0

    def check(self, signature_name: str, deadline: Deadline, priority: Priority) -> None:
        """Check whether a request would be in time, before it is decoded. Cheap.

        Raises:
            TooLate: even a request of one row would be answered after its deadline.
        """
        latest = self.latest
        if latest is None:
            return
        try:
            latest.check(signature_name, deadline, priority, self._forecasts.clock.monotonic_s())
        except TooLate:
            self.begin()
            self._forecasts.metrics.task_dropped(servable=latest.servable_id, reason="too_late", priority=priority)
            raise

    def lateness_s(self, deadline: Deadline, now_s: float) -> float:
        """Return by how many seconds a request of high priority would miss its deadline, or 0. See Refusals."""
        lateness_s = 0.0 if self.latest is None else self.latest.lateness_s(deadline, now_s)
        if lateness_s:
            self.begin()
        return lateness_s

    def forecast(self) -> FinishForecast | None:
        """Return the engine's latest forecast, if requests are checked."""
        return self.latest

    def begin(self) -> None:
        """Check requests before they are decoded from now on, because one is late."""
        self._forecasts.begin(self)
