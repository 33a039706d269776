"""A fleet behind an even balancer, with its metrics, its autoscaler and servers that take time to start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from benchmarks.fleet.autoscaler import SYNC_S, Autoscaler, Settings, wanted_by_pods, wanted_by_sum
from benchmarks.fleet.curves import Curve
from benchmarks.fleet.responses import CAPACITY, ServerResponses

# Prometheus scrapes, then evaluates its rules, then the autoscaler reads: each as late as it can be after the one
# before it, so that a value is 20 s old.
STEP_S: Final = 5.0
SCRAPE_S: Final = 15.0
_SCRAPE_AT, _RULE_AT, _SYNC_AT = 10.0, 5.0, 0.0


@dataclass(frozen=True, slots=True)
class _Totals:
    """Counters of a server since it became ready."""

    demand_s: float = 0.0
    busy_s: float = 0.0
    wait_s: float = 0.0
    admitted: float = 0.0

    def plus(self, demand_s: float, busy_s: float, wait_s: float, admitted: float) -> "_Totals":
        return _Totals(self.demand_s + demand_s, self.busy_s + busy_s, self.wait_s + wait_s, self.admitted + admitted)


_Metric: TypeAlias = Callable[[_Totals, _Totals, float], float]


@dataclass(frozen=True, slots=True)
class Signal:
    """A metric of a server: its value from the totals of `window_s` seconds. `target` None: that of the manifest."""

    name: str
    window_s: float
    metric: _Metric
    target: float | None = None
    is_external: bool = False


def _mean_wait(now: _Totals, then: _Totals, _: float) -> float:
    admitted = now.admitted - then.admitted
    return (now.wait_s - then.wait_s) / admitted if admitted else 0.0


def _demand(now: _Totals, then: _Totals, seconds: float) -> float:
    return (now.demand_s - then.demand_s) / seconds


SIGNALS: Final = (
    Signal("queue wait", 120.0, _mean_wait, target=0.05),
    Signal("utilisation", 120.0, lambda now, then, seconds: (now.busy_s - then.busy_s) / seconds, target=0.7),
    Signal("demand", 30.0, _demand),
    Signal("demand, KEDA", 30.0, _demand, is_external=True),
)


@dataclass(slots=True)
class _Server:
    """A server. It has totals at each step since it became ready, and a metric from its first scrape on."""

    ready_s: float
    totals: list[_Totals] = field(default_factory=lambda: [_Totals()])
    scraped: float | None = None
    recorded: float | None = None

    def scrape(self, signal: Signal) -> None:
        steps = min(round(signal.window_s / STEP_S), len(self.totals) - 1)
        if steps:
            self.scraped = signal.metric(self.totals[-1], self.totals[-1 - steps], steps * STEP_S)


@dataclass(frozen=True, slots=True)
class Moment:
    """A step: requests a second that clients want and that get an answer in time, and servers."""

    at_s: float
    wanted: float
    answered: float
    servers: int
    ready: int
    ideal: int

    @property
    def is_overloaded(self) -> bool:
        """Whether the ready servers can answer less than the clients want."""
        return self.wanted > self.ready * CAPACITY


@dataclass(frozen=True, slots=True)
class Outcome:
    """A simulated curve under one signal."""

    curve: Curve
    signal: str
    moments: tuple[Moment, ...]
    # Times at which the autoscaler removed servers while the others could not answer all requests.
    wrong_removals_s: tuple[float, ...]

    @property
    def goodput(self) -> float:
        """Share of the requests that were answered in time."""
        return _goodput(self.moments)

    def worst_minute(self, settings: Settings, periods: int) -> float:
        """Return the goodput of the worst minute, from some periods of the scale-up policy after the step on."""
        period_s = max(limit.period_s for limit in settings.up)
        from_s = 0.0 if self.curve.step_s is None else self.curve.step_s + periods * period_s
        moments = [moment for moment in self.moments if moment.at_s >= from_s]
        steps = round(60 / STEP_S)
        return min(_goodput(moments[place : place + steps]) for place in range(0, len(moments), steps))

    @property
    def server_hours(self) -> float:
        """Hours of all servers, those that start included."""
        return sum(moment.servers for moment in self.moments) * STEP_S / 3600

    @property
    def of_ideal(self) -> float:
        """Server-hours, divided by those of servers that exist only while a load at the target needs them."""
        return sum(moment.servers for moment in self.moments) / sum(moment.ideal for moment in self.moments)


def _goodput(moments: Sequence[Moment]) -> float:
    return sum(moment.answered for moment in moments) / sum(moment.wanted for moment in moments)


class _Fleet:
    """The servers and the clients that wait to retry."""

    def __init__(self, curve: Curve, responses: ServerResponses, servers: int) -> None:
        self._curve = curve
        self._responses = responses
        self.servers = [_Server(0.0) for _ in range(servers)]
        # Requests a second that come again in the next step, by the number of the attempt.
        self._again = [0.0] * (curve.retries + 1)

    def ready(self, now_s: float) -> list[_Server]:
        return [server for server in self.servers if server.ready_s <= now_s]

    def step(self, now_s: float) -> tuple[float, float]:
        """Let requests arrive for a step. Return the new ones and those answered in time, a second."""
        wanted = self._curve.rate(now_s) * CAPACITY
        attempts = [wanted, *self._again[1:]]
        arrived, ready = sum(attempts), self.ready(now_s)
        answered = 0.0
        if ready:
            each = self._responses.at(arrived / len(ready) / CAPACITY)
            answered = min(each.answered * len(ready), arrived)
            for server in ready:
                server.totals.append(
                    server.totals[-1].plus(
                        each.demand * STEP_S, each.busy * STEP_S, each.wait_s * STEP_S, each.admitted * STEP_S
                    )
                )
        refused = 1 - answered / arrived if arrived else 0.0
        self._again = [0.0, *(refused * attempt for attempt in attempts[: self._curve.retries])]
        return wanted, answered

    def resize(self, count: int, ready_s: float) -> None:
        """Start servers that are ready at `ready_s`, or stop those that were started last."""
        self.servers += [_Server(ready_s) for _ in range(count - len(self.servers))]
        del self.servers[count:]


def simulate(
    curve: Curve, signal: Signal, responses: ServerResponses, settings: Settings, start_up_s: float
) -> Outcome:
    """Simulate a curve under one signal. Servers are ready `start_up_s` after the decision."""
    target = signal.target or settings.target
    scaler, fleet = Autoscaler(settings), _Fleet(curve, responses, settings.least)
    moments: list[Moment] = []
    wrong_s: list[float] = []
    for number in range(round(curve.seconds / STEP_S)):
        now_s = number * STEP_S
        if now_s % SCRAPE_S == _SCRAPE_AT:
            for server in fleet.ready(now_s):
                server.scrape(signal)
        if now_s % SCRAPE_S == _RULE_AT:
            for server in fleet.servers:
                server.recorded = server.scraped
        wanted, answered = fleet.step(now_s)
        needed = min(max(-int(-wanted // (settings.target * CAPACITY)), settings.least), settings.most)
        moment = Moment(now_s, wanted, answered, len(fleet.servers), len(fleet.ready(now_s)), needed)
        moments.append(moment)
        if now_s % SYNC_S == _SYNC_AT:
            metrics = [server.recorded for server in fleet.servers]
            if signal.is_external:
                wish = wanted_by_sum(len(metrics), sum(value or 0.0 for value in metrics), target)
            else:
                wish = wanted_by_pods(len(metrics), metrics, target)
            count = scaler.decide(now_s, len(metrics), wish)
            if count < len(metrics) and moment.is_overloaded:
                wrong_s.append(now_s)
            fleet.resize(count, now_s + start_up_s)
    return Outcome(curve, signal.name, tuple(moments), tuple(wrong_s))


def overloaded_wish(signal: Signal, responses: ServerResponses, settings: Settings, servers: int, load: float) -> int:
    """Return the servers that a signal asks for while each of `servers` has had `load` times its capacity for long."""
    each = responses.at(load)
    now = _Totals().plus(each.demand, each.busy, each.wait_s, each.admitted)
    value = signal.metric(now, _Totals(), 1.0)
    target = signal.target or settings.target
    if signal.is_external:
        return wanted_by_sum(servers, value * servers, target)
    return wanted_by_pods(servers, [value] * servers, target)
