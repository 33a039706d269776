"""Other work of the machine during a run: a reason to distrust figures that the run itself cannot see."""

import os
import time
from pathlib import Path
from typing import Final

# Share of a run's time during which a runnable task waited for a CPU, or the hypervisor withheld one. A run alone on
# two cores stays below 5 %.
_BUSY_SHARE: Final = 0.10
_STOLEN_SHARE: Final = 0.01
_PRESSURE: Final = Path("/proc/pressure/cpu")


class MachineWatch:
    """The machine's CPU pressure and stolen time since its creation. Linux only."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._waited_s = _waited_s()
        self._stolen_s = _stolen_s()

    def reason(self) -> str:
        """Return why figures that need an idle machine mean nothing, or an empty string."""
        elapsed_s = time.monotonic() - self._began_s
        waited = (_waited_s() - self._waited_s) / elapsed_s
        if waited > _BUSY_SHARE:
            return f"busy machine: tasks waited for a CPU {waited:.0%} of the time"
        stolen = (_stolen_s() - self._stolen_s) / elapsed_s / (os.cpu_count() or 1)
        return f"busy machine: {stolen:.0%} of the CPUs' time was stolen" if stolen > _STOLEN_SHARE else ""


def _waited_s() -> float:
    """Return the seconds during which at least one task waited for a CPU (kernel, Documentation/accounting/psi.rst)."""
    try:
        return int(_PRESSURE.read_text().split("total=")[1].split()[0]) / 1e6
    except OSError:  # a kernel without pressure information
        return 0.0


def _stolen_s() -> float:
    """Return the seconds of CPU that the hypervisor gave to other machines (proc_stat(5), the field steal)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")
