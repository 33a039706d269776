"""Energy of this machine during loads, which includes the server, the load generator and all other processes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_loadtests.monitoring.rapl import Counters, NoCounters

_TOO_SHORT = "the load ended before its measured time"


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy in the measured `seconds` of one or more runs, by kind: `package`, and `dram` if it has counters."""

    seconds: float
    joules: Mapping[str, float]

    @property
    def watts(self) -> dict[str, float]:
        """The mean power by kind."""
        return {kind: joules / self.seconds for kind, joules in self.joules.items()}

    @property
    def total_watts(self) -> float:
        """The mean power of all kinds. They exclude each other."""
        return sum(self.watts.values())


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """The reason why the energy of a server on this machine is unknown."""

    reason: str


# None if the server runs on another machine.
EnergyFound: TypeAlias = Energy | Unmeasured | None


class Meter:
    """Sum of the energy between readings. The caller reads more often than the counters restart."""

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start without a reading. `clock` returns seconds."""
        self._counters = counters
        self._clock = clock
        self._joules: dict[str, float] = {}
        self._began_s = self._last_s = 0.0
        self._last_uj: tuple[int, ...] | None = None
        self._problem = ""

    @property
    def has_begun(self) -> bool:
        """Whether a reading was made or failed."""
        return self._last_uj is not None or bool(self._problem)

    def read(self) -> None:
        """Read the counters and add the energy since the previous reading. After a failure, do nothing."""
        if self._problem:
            return
        try:
            now_uj, now_s = self._counters.read_uj(), self._clock()
        except NoCounters as error:
            self._problem = str(error)
            return
        if self._last_uj is None:
            self._began_s = now_s
        else:
            for kind, joules in self._counters.joules(self._last_uj, now_uj).items():
                self._joules[kind] = self._joules.get(kind, 0.0) + joules
        self._last_uj, self._last_s = now_uj, now_s

    def total(self) -> Energy | Unmeasured:
        """Return the energy between the first and the last reading, or the reason why it is unknown."""
        seconds = self._last_s - self._began_s
        if self._problem or not self._joules or seconds <= 0:
            return Unmeasured(self._problem or _TOO_SHORT)
        return Energy(seconds, dict(self._joules))


def join_energies(found: Sequence[EnergyFound]) -> EnergyFound:
    """Add up the runs with a measurement. Without any, return the first reason, or None."""
    known = [one for one in found if isinstance(one, Energy)]
    if not known:
        return next((one for one in found if one is not None), None)
    kinds = dict.fromkeys(kind for one in known for kind in one.joules)
    joules = {kind: sum(one.joules.get(kind, 0.0) for one in known) for kind in kinds}
    return Energy(sum(one.seconds for one in known), joules)
