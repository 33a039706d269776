"""Machines of GKE with a whole TPU slice: their labels, resources and names."""

from dataclasses import dataclass
from typing import Self

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.tpu_topology import TpuTopology

# Value of the label cloud.google.com/gke-tpu-accelerator, and prefix of the machine types, by family. From Google's
# table "Plan TPUs in GKE".
_FAMILIES = {"v5e": ("tpu-v5-lite-podslice", "ct5lp-hightpu"), "v6e": ("tpu-v6e-slice", "ct6e-standard")}
# Grids that one machine of these families has: 1, 4 or 8 chips.
_GRIDS = ("1x1", "2x2", "2x4")


@dataclass(frozen=True, slots=True)
class GkeMachine:
    """One machine. `accelerator` is the value of its label, and `machine_type` its name, such as ct5lp-hightpu-4t."""

    topology: TpuTopology
    accelerator: str
    machine_type: str

    @classmethod
    def of(cls, topology: TpuTopology) -> Self:
        """Return the machine that has all chips of `topology`. Raises OptionConflict if there is none."""
        family = topology.family.name
        if family not in _FAMILIES:
            raise OptionConflict(
                f"`tpuserve deploy` supports {' and '.join(_FAMILIES)}, and got {topology.name}. Write the deployment "
                "by hand for other TPUs"
            )
        if topology.grid not in _GRIDS:
            several = topology.chips > topology.family.machine_chips
            reason = (
                "spans several machines, and a server runs on one" if several else "is not a machine of Google Cloud"
            )
            raise OptionConflict(f"{topology.name} {reason}. Use {', '.join(f'{family}:{grid}' for grid in _GRIDS)}")
        accelerator, prefix = _FAMILIES[family]
        return cls(topology, accelerator, f"{prefix}-{topology.chips}t")

    @property
    def grid(self) -> str:
        """The value of the label cloud.google.com/gke-tpu-topology."""
        return self.topology.grid

    @property
    def chips(self) -> int:
        """The number of chips, which is the pod's request for google.com/tpu."""
        return self.topology.chips
