"""Energy counters of this machine's processors: RAPL, which Linux shows in /sys/class/powercap.

The kernel's Documentation/power/powercap/powercap.rst describes the files. Intel's and AMD's processors have the same
names. This module reads the counters, and `energy` adds them up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


class Counters:
    """The counters of all packages, and of their memory if it has counters."""

    def __init__(self, root: Path) -> None:
        """Find the counters under `root`, which is ROOT or a directory with the same files. Raises NoCounters."""
        found = [_zone(folder) for folder in sorted(root.glob("intel-rapl:*"))]
        self._zones = [zone for zone in found if zone is not None]
        if all(zone.kind != PACKAGE for zone in self._zones):
            raise NoCounters(_ABSENT)
        self.read_uj()

    def read_uj(self) -> tuple[int, ...]:
        """Read all counters, in microjoules. Raises NoCounters."""
        return tuple(zone.read_uj() for zone in self._zones)

    def joules(self, earlier_uj: Sequence[int], later_uj: Sequence[int]) -> Mapping[str, float]:
        """Return the energy between two readings by kind. A counter may restart once between them."""
        found: dict[str, float] = {}
        for zone, earlier, later in zip(self._zones, earlier_uj, later_uj, strict=True):
            restarted = zone.range_uj if later < earlier else 0
            found[zone.kind] = found.get(zone.kind, 0.0) + (later + restarted - earlier) * _MICRO
        return found


def _zone(folder: Path) -> _Zone | None:
    """Return the counter in a folder, or None for a kind that other counters include."""
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
