"""TPUs by topology, and meshes of their devices with rules for weights."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tpuserve_exporter.errors import OptionConflict
from tpuserve_formats.errors import FormatError
from tpuserve_formats.mesh_shape import AXES, MeshShape

GIB = 2**30
_FLAT = ("1x1", "1x2", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "1x2x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8")


@dataclass(frozen=True, slots=True)
class TpuMachine:
    """A machine of Google Cloud that has all chips of a grid. `memory_gib` is None for an unknown host memory."""

    grid: str
    machine_type: str
    memory_gib: float | None = None


@dataclass(frozen=True, slots=True)
class TpuFamily:
    """A generation of chips. Figures are for one device. A chip has `devices_per_chip` devices.

    `hbm_bytes` is the compiler's memory limit for a program. `flops_per_s` is the published peak in bfloat16, and
    `bytes_per_s` the published bandwidth of HBM. `machine_chips` is the number of chips in the largest machine.
    `accelerator` is the prefix of its machines' names (v5litepod-4). The number after the prefix counts chips or, with
    `counts_cores`, two for each chip. `gke_accelerator` is the value of the label cloud.google.com/gke-tpu-accelerator,
    or empty for a family that GKE does not have. `machines` are the slices with one host, in ascending order.
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
    gke_accelerator: str
    machines: tuple[TpuMachine, ...]

    def host_chips(self, grid: str) -> tuple[int, ...]:
        """Return the possible numbers of chips of a host in a slice with this grid, or () if GKE has no such slice.

        A slice of several hosts has hosts with four chips. A 2x4 slice has one host with eight chips, or two with four.
        """
        if not self.gke_accelerator:
            return ()
        one_host = tuple(count_chips(grid) for machine in self.machines if machine.grid == grid)
        return (*one_host, *((_SLICE_HOST_CHIPS,) if self._has_hosts(grid) else ()))

    def _has_hosts(self, grid: str) -> bool:
        """Return whether GKE has slices of several hosts with this grid."""
        if self.grids is _FLAT:
            return grid in _FLAT and count_chips(grid) > _SLICE_HOST_CHIPS
        if re.fullmatch(r"\d{1,3}x\d{1,3}x\d{1,3}", grid) is None:
            return False
        sizes = [int(size) for size in grid.split("x")]
        whole = sizes == sorted(sizes) and all(size and size % _SLICE_HOST_CHIPS == 0 for size in sizes)
        return whole or grid in _SMALL_SLICES


def count_chips(grid: str) -> int:
    """Return the number of chips in a grid such as 2x4."""
    return math.prod(int(size) for size in grid.split("x"))


def _family(
    name: str, devices: int, hbm_gib: float, chip_tflops: float, chip_gb_per_s: float, machine_chips: int,
    grids: tuple[str, ...],
    accelerator: str = "", counts_cores: bool = True,
) -> TpuFamily:  # fmt: skip
    gke_accelerator, machines = _GKE.get(name, ("", ()))
    return TpuFamily(
        name, devices, int(hbm_gib * GIB), chip_tflops * 1e12 / devices, chip_gb_per_s * 1e9 / devices, machine_chips,
        grids, accelerator or name, counts_cores, gke_accelerator, tuple(TpuMachine(*one) for one in machines),
    )  # fmt: skip


# The accelerator label of GKE, and the slices with one host: grid, machine type, GiB of host memory. From Google's page
# "Plan TPUs in GKE" and the table of XPK, Google's tool for TPUs on GKE. Sources differ on the memory of
# ct6e-standard-1t, and that of tpu7x is not in them.
_GKE: Mapping[str, tuple[str, tuple[tuple[str, str, float | None], ...]]] = {
    "v4": ("tpu-v4-podslice", (("2x2x1", "ct4p-hightpu-4t", 407),)),
    "v5e": (
        "tpu-v5-lite-podslice",
        (("1x1", "ct5lp-hightpu-1t", 48), ("2x2", "ct5lp-hightpu-4t", 192), ("2x4", "ct5lp-hightpu-8t", 384)),
    ),
    "v5p": ("tpu-v5p-slice", (("2x2x1", "ct5p-hightpu-4t", 448),)),
    "v6e": (
        "tpu-v6e-slice",
        (("1x1", "ct6e-standard-1t", None), ("2x2", "ct6e-standard-4t", 720), ("2x4", "ct6e-standard-8t", 1440)),
    ),
    "tpu7x": ("tpu7x", (("1x1x1", "tpu7x-standard-1t", None), ("2x2x1", "tpu7x-standard-4t", None))),
}
# Slices of several hosts: the number of chips of a host, and the cubes with a side that is not a multiple of four.
_SLICE_HOST_CHIPS = 4
_SMALL_SLICES = ("2x2x2", "2x2x4", "2x4x4")

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
        return count_chips(self.grid)

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


# A dimension in --shard that is not sharded.
_WHOLE = ("", "-")


@dataclass(frozen=True, slots=True)
class DeviceMesh(MeshShape):
    """A grid of `data` x `model` devices. Batches are sharded over `data`, and weights over `model`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `data=2,model=4`; an omitted axis has one device. Raises OptionConflict."""
        try:
            shape = MeshShape.parse(text)
        except FormatError:
            raise OptionConflict(f"{text!r} is not of the form data=N,model=M, data=N or model=M") from None
        return cls(shape.data, shape.model)

    def __str__(self) -> str:
        """Return the mesh as --mesh takes it: `model=4`."""
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1) or "data=1"

    def check(self, topology: TpuTopology) -> None:
        """Raise OptionConflict if the mesh has more devices than the topology."""
        if self.devices <= topology.devices:
            return
        larger = next((one.name for one in topology.larger() if one.devices >= self.devices), None)
        there = f"{topology.name} has {topology.devices}"
        raise OptionConflict(
            f"--mesh {self} needs {self.devices} devices, but {there}{f'. Use {larger}' if larger else ''}"
        )


@dataclass(frozen=True, slots=True)
class ShardRule:
    """The sharding of weights with names that `pattern` matches. `axes` has a mesh axis or None for each dimension."""

    pattern: re.Pattern[str]
    axes: tuple[str | None, ...]

    @classmethod
    def parse(cls, text: str) -> "ShardRule":
        """Parse `embedding/.*=model,-`. The last `=` separates the pattern from an axis or `-` for each dimension.

        Raises OptionConflict.
        """
        regex, equals, listed = text.rpartition("=")
        axes = tuple(None if part.strip() in _WHOLE else part.strip() for part in listed.split(","))
        named = [axis for axis in axes if axis is not None]
        if not regex or not equals or not named or set(named) - set(AXES) or len(set(named)) < len(named):
            raise OptionConflict(
                f"{text!r} is not of the form REGEX=AXES, such as 'embedding/.*=model,-'. Each dimension has data, "
                "model, or - if it is not split, and each axis occurs at most once"
            )
        try:
            return cls(re.compile(regex), axes)
        except re.error as error:
            raise OptionConflict(f"{text!r} is not a regular expression: {error}") from error

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "ShardRule":
        """Read a rule from a manifest."""
        return cls(re.compile(written["pattern"]), tuple(written["axes"]))

    def check(self, mesh: DeviceMesh) -> None:
        """Raise OptionConflict if `mesh` has only one device along each axis of the rule."""
        named = [axis for axis in self.axes if axis is not None]
        if all(getattr(mesh, axis) == 1 for axis in named):
            raise OptionConflict(
                f"--shard '{self}' splits nothing over --mesh {mesh}. Use more than one device for {named[0]}, such "
                f"as --mesh {named[0]}=4"
            )

    def to_json(self) -> dict[str, Any]:
        return {"pattern": self.pattern.pattern, "axes": list(self.axes)}

    def __str__(self) -> str:
        return f"{self.pattern.pattern}={','.join(axis or '-' for axis in self.axes)}"


def find_axes(weight: str, rules: Sequence[ShardRule]) -> tuple[str | None, ...]:
    """Return the axes of the first rule that matches the name, or () if the weight is replicated."""
    return next((rule.axes for rule in rules if rule.pattern.search(weight)), ())
