"""Energy of this machine during loads, which includes the server, the load generator and all other processes."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias

import gevent
from gevent.event import Event

from tpuserve_loadtests.arrivals.load import Load

# RAPL's counters. The kernel's Documentation/power/powercap/powercap.rst describes the files. The zones of Intel's and
# AMD's processors have the same names.
ROOT: Final = "/sys/class/powercap"
PACKAGE: Final = "package"
DRAM: Final = "dram"
# Other zones are parts of a package (core, uncore), or include the packages (psys).
_KINDS: Final = (PACKAGE, DRAM)
_ABSENT: Final = "this machine has no RAPL counters"
_MICRO: Final = 1e-6


class NoCounters(Exception):
    """Error for counters that are missing or unreadable. The message is the reason."""


@dataclass(frozen=True, slots=True)
class _Zone:
    """A counter in microjoules, which restarts at 0 after `range_uj`."""

    kind: str
    folder: Path
    range_uj: int

    def read_uj(self) -> int:
        return _number(self.folder / "energy_uj")


def _find_zones(root: Path) -> tuple[_Zone, ...]:
    """Return the readable counters of all packages, and of their memory if it has counters. Raises NoCounters."""
    zones = [_zone(folder) for folder in sorted(root.glob("intel-rapl:*"))]
    found = tuple(zone for zone in zones if zone is not None)
    if all(zone.kind != PACKAGE for zone in found):
        raise NoCounters(_ABSENT)
    for zone in found:
        zone.read_uj()
    return found


def _zone(folder: Path) -> _Zone | None:
    name = _text(folder / "name")
    kind = next((kind for kind in _KINDS if name.startswith(kind)), None)
    return None if kind is None else _Zone(kind, folder, _number(folder / "max_energy_range_uj"))


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdecimal():
        raise NoCounters(f"the RAPL counter {path} has no number: {text[:20]!r}")
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except PermissionError:
        raise NoCounters(f"this user may not read the RAPL counter {path}, which needs root by default") from None
    except OSError as error:
        raise NoCounters(f"the RAPL counter {path} is unreadable: {error.strerror}") from None


_TOO_SHORT = "the load ended before its measured time"


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy in the measured `seconds` of one or more runs, by kind: `package`, and `dram` if it has counters."""

    seconds: float
    joules: Mapping[str, float]

    @property
    def watts(self) -> dict[str, float]:
        return {kind: joules / self.seconds for kind, joules in self.joules.items()}

    @property
    def total_watts(self) -> float:
        """The mean power of all kinds. They exclude each other."""
        return sum(self.watts.values())


@dataclass(frozen=True, slots=True)
class Unmeasured:
    reason: str


# None if the server runs on another machine.
EnergyFound: TypeAlias = Energy | Unmeasured | None


def join_energies(found: Sequence[EnergyFound]) -> EnergyFound:
    """Add up the runs with a measurement. Without any, return the first reason, or None."""
    known = [one for one in found if isinstance(one, Energy)]
    if not known:
        return next((one for one in found if one is not None), None)
    kinds = dict.fromkeys(kind for one in known for kind in one.joules)
    joules = {kind: sum(one.joules.get(kind, 0.0) for one in known) for kind in kinds}
    return Energy(sum(one.seconds for one in known), joules)


# The smallest counters restart after 65 kJ, which 1 kW takes 65 s to use.
_INTERVAL_S: Final = 10.0


class EnergyWatch:
    """Sum of the energy between readings of the counters. Without a `root` of counters, it measures nothing."""

    def __init__(self, root: Path | None, clock: Callable[[], float] = time.perf_counter) -> None:
        """Find the counters under `root`, which is ROOT or a directory with the same files. `clock` returns seconds."""
        self._clock = clock
        self._is_elsewhere = root is None
        self._zones: tuple[_Zone, ...] = ()
        self._joules: dict[str, float] = {}
        self._last_uj: list[int] = []
        self._reset()
        try:
            self._zones = () if root is None else _find_zones(root)
        except NoCounters as error:
            self._problem = str(error)

    @property
    def energy(self) -> EnergyFound:
        """The energy between the first and the last reading of a load, or the reason why it is unknown."""
        if self._is_elsewhere:
            return None
        seconds = self._last_s - self._began_s
        if self._problem or not self._joules or seconds <= 0:
            return Unmeasured(self._problem or _TOO_SHORT)
        return Energy(seconds, dict(self._joules))

    def read(self) -> None:
        """Read the counters and add the energy since the previous reading. After a failure, do nothing.

        A counter may restart once between two readings.
        """
        if self._problem:
            return
        try:
            now_uj, now_s = [zone.read_uj() for zone in self._zones], self._clock()
        except NoCounters as error:
            self._problem = str(error)
            return
        if not self._last_uj:
            self._began_s = now_s
        for zone, earlier, later in zip(self._zones, self._last_uj, now_uj, strict=False):
            restarted = zone.range_uj if later < earlier else 0
            joules = (later + restarted - earlier) * _MICRO
            self._joules[zone.kind] = self._joules.get(zone.kind, 0.0) + joules
        self._last_uj, self._last_s = now_uj, now_s

    @contextmanager
    def during(self, load: Load) -> Iterator[Self]:
        """Measure while the block runs the load, from the end of its warm-up to the end of the block."""
        if not self._zones:
            yield self
            return
        self._reset()
        over = Event()
        if not load.warm_up_s:
            self.read()
        reader = gevent.spawn(self._keep_reading, time.perf_counter() + load.warm_up_s, over)
        try:
            yield self
        finally:
            over.set()
            reader.join()
            # A load that ends in its warm-up has no measured time.
            if self._last_uj:
                self.read()

    def _reset(self) -> None:
        self._problem = ""
        self._joules, self._last_uj = {}, []
        self._began_s = self._last_s = 0.0

    def _keep_reading(self, zero_s: float, over: Event) -> None:
        wait_s = max(zero_s - time.perf_counter(), 0.0)
        while not over.wait(wait_s):
            self.read()
            wait_s = _INTERVAL_S
