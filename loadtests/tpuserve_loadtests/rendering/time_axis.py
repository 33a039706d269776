"""Time axes with a unit that suits their length."""

from typing import Final

from tpuserve_loadtests.rendering.chart import Axis
from tpuserve_loadtests.rendering.scales import Linear
from tpuserve_loadtests.rendering.units import three_digits

# Units, with their seconds and the shortest axis in seconds for which they apply.
_UNITS: Final = (("s", 1.0, 0.0), ("min", 60.0, 300.0), ("h", 3600.0, 4 * 3600.0))


class TimeAxis:
    """An axis from 0 to a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._unit, self._size, _ = [unit for unit in _UNITS if seconds >= unit[2]][-1]
        self.axis = Axis(f"time, {self._unit}", Linear(0.0, seconds / self._size))

    def of(self, seconds: float) -> float:
        """Convert seconds to the axis unit."""
        return seconds / self._size

    def middle(self, start_s: float, seconds: float) -> float:
        """Return the middle of a period in the axis unit."""
        return self.of(start_s + seconds / 2)

    def period(self, start_s: float, seconds: float) -> str:
        """Describe a period in words."""
        return f"{three_digits(self.of(start_s))} to {three_digits(self.of(start_s + seconds))} {self._unit}"
