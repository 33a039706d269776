"""A directory tree of energy counters like the kernel's, with links from the class to nested zones."""

import os
from pathlib import Path

RANGE_UJ = 262_143_328_850  # that of an Intel Xeon
# Zones of a machine with two packages, by number, as in the kernel.
ZONES = {
    "0": "package-0",
    "0:0": "core",
    "0:1": "dram",
    "1": "package-1",
    "1:0": "dram",
    "2": "psys",
}


class RaplTree:
    """The counters of a machine. `root` has the role of /sys/class/powercap."""

    def __init__(self, folder: Path, zones: dict[str, str] = ZONES) -> None:
        self.root = folder / "class/powercap"
        self.root.mkdir(parents=True)
        devices = folder / "devices/virtual/powercap/intel-rapl"
        (devices / "power").mkdir(parents=True)
        (self.root / "intel-rapl").symlink_to(devices)
        for number, name in zones.items():
            package, _, part = number.partition(":")
            zone = devices / f"intel-rapl:{package}" / (f"intel-rapl:{number}" if part else ".")
            zone.mkdir(parents=True, exist_ok=True)
            (self.root / f"intel-rapl:{number}").symlink_to(zone.resolve())
            (zone / "name").write_text(f"{name}\n")
            (zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            self.set(number, 0)

    def file(self, number: str, name: str = "energy_uj") -> Path:
        """Return a file of a zone."""
        return (self.root / f"intel-rapl:{number}").resolve() / name

    def set(self, number: str, energy_uj: int) -> None:
        """Set a counter. Readers see the old or the new value, as in the kernel."""
        path = self.file(number)
        path.with_suffix(".new").write_text(f"{energy_uj}\n")
        os.replace(path.with_suffix(".new"), path)

    def set_all(self, energy_uj: int) -> None:
        """Set all counters to the same value."""
        for link in self.root.glob("intel-rapl:*"):
            self.set(link.name.removeprefix("intel-rapl:"), energy_uj)
