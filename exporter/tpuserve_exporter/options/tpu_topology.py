"""TPU topologies that the compiler supports, and the names of Google Cloud machines with them."""

import math
import re
from dataclasses import dataclass

from tpuserve_exporter.errors import OptionConflict

GIB = 2**30
_FLAT = ("1x1", "1x2", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "1x2x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8")


@dataclass(frozen=True, slots=True)
class TpuFamily:
    """A generation of chips. Figures are for one device. A chip has `devices_per_chip` devices.

    `hbm_bytes` is the compiler's memory limit for a program. `flops_per_s` is the published peak in bfloat16, and
    `bytes_per_s` the published bandwidth of HBM. `machine_chips` is the number of chips in the largest machine.
    `accelerator` is the prefix of its machines' names (v5litepod-4). The number after the prefix counts chips or, with
    `counts_cores`, two for each chip.
    """

    name: str
    devices_per_chip: int
    hbm_bytes: int
    flops_per_s: float
    bytes_per_s: float
    machine_chips: int
    grids: tuple[str, ...]
    accelerator: str
    counts_cores: bool


def _family(
    name: str, devices: int, hbm_gib: float, chip_tflops: float, chip_gb_per_s: float, machine_chips: int,
    grids: tuple[str, ...],
    accelerator: str = "", counts_cores: bool = True,
) -> TpuFamily:  # fmt: skip
    return TpuFamily(
        name, devices, int(hbm_gib * GIB), chip_tflops * 1e12 / devices, chip_gb_per_s * 1e9 / devices, machine_chips,
        grids, accelerator or name, counts_cores,
    )  # fmt: skip


# HBM limits are from errors of libtpu 0.0.52 (0.0.42: 31.25 GiB for v6e). Peak and bandwidth of a chip, and chips of a
# machine, are from Google's documentation of each generation.
FAMILIES = {
    family.name: family
    for family in (
        _family("v2", 2, 7.48, 46, 700, 4, _FLAT),
        _family("v3", 2, 15.48, 123, 900, 4, _FLAT),
        _family("v4", 2, 15.25, 275, 1228, 4, _CUBES),
        _family("v5e", 1, 15.75, 197, 819, 8, _FLAT, "v5litepod", counts_cores=False),
        _family("v5p", 1, 95.73, 459, 2765, 4, _CUBES),
        _family("v6e", 1, 31.24, 918, 1638, 8, _FLAT, counts_cores=False),
        _family("tpu7x", 2, 94.74, 2307, 7380, 4, _CUBES),
    )
}


@dataclass(frozen=True, slots=True)
class TpuTopology:
    """Chips of one kind, wired in a grid: `v5e:2x4`."""

    family: TpuFamily
    grid: str

    @classmethod
    def parse(cls, text: str) -> "TpuTopology":
        """Parse a compiler's name, `v5e:2x2`, or a machine's name, `v5litepod-4`. Raises OptionConflict."""
        name = text.strip().lower()
        family, colon, grid = name.partition(":")
        if colon and family in FAMILIES and grid in FAMILIES[family].grids:
            return cls(FAMILIES[family], grid)
        found = None if colon else _find_machine(name)
        if found is None:
            raise OptionConflict(f"{text.strip()!r} is not a known TPU. {list_known()}")
        return found

    @property
    def name(self) -> str:
        return f"{self.family.name}:{self.grid}"

    @property
    def chips(self) -> int:
        return math.prod(int(size) for size in self.grid.split("x"))

    @property
    def devices(self) -> int:
        return self.chips * self.family.devices_per_chip

    @property
    def machine_devices(self) -> int:
        """The number of devices in one machine, which limits one server."""
        return min(self.chips, self.family.machine_chips) * self.family.devices_per_chip

    def larger(self) -> "tuple[TpuTopology, ...]":
        """Return the topologies of the same family with more chips, in ascending order."""
        grids = (TpuTopology(self.family, grid) for grid in self.family.grids)
        return tuple(one for one in grids if one.chips > self.chips)


def parse_topologies(text: str) -> tuple[TpuTopology, ...]:
    """Parse `v5e:1x1,v6e-8`. Remove duplicates and keep the order. Raises OptionConflict."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise OptionConflict(f"no TPU is named. {list_known()}")
    return tuple(dict.fromkeys(TpuTopology.parse(part) for part in parts))


def list_known() -> str:
    """List every topology and examples of machine names, as the last sentences of an error."""
    families: dict[tuple[str, ...], list[str]] = {}
    for family in FAMILIES.values():
        families.setdefault(family.grids, []).append(family.name)
    listed = "; ".join(f"{', '.join(names)} in {', '.join(grids)}" for grids, names in families.items())
    return f"Known TPUs: {listed}. Write v5e:2x2, or a machine's name: v5litepod-4, v6e-8, v4-8, v5p-8, tpu7x-8"


def _find_machine(name: str) -> TpuTopology | None:
    """Find the first grid with the number of chips in `v5litepod-4`, `v6e-8` or `v4-8`."""
    match = re.fullmatch(r"(?P<kind>\w+)-(?P<count>\d+)", name)
    if match is None:
        return None
    for family in FAMILIES.values():
        if match["kind"] in (family.accelerator, family.name):
            chips = int(match["count"]) / (2 if family.counts_cores else 1)
            return next((one for one in (TpuTopology(family, g) for g in family.grids) if one.chips == chips), None)
    return None
