"""Machines of GKE with a whole TPU slice, from the table of TPU families, and machine types of Vertex AI."""

import re
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_exporter.errors import DoesNotFit, OptionConflict
from tpuserve_exporter.options.tpu import FAMILIES, TpuTopology

# Families that Vertex AI has, from Google's page "Deploy a model to Cloud TPU VMs".
_VERTEX_FAMILIES: Final = ("v5e", "v6e")


@dataclass(frozen=True, slots=True)
class GkeMachine:
    """One machine. `accelerator` is the value of its label, and `machine_type` its name, such as ct5lp-hightpu-4t.

    `memory_gib` is None for an unknown host memory.
    """

    topology: TpuTopology
    accelerator: str
    machine_type: str
    memory_gib: float | None

    @classmethod
    def of(cls, topology: TpuTopology) -> Self:
        """Return the machine that has all chips of `topology`. Raises OptionConflict if there is none."""
        family = topology.family
        if not family.machines:
            known = ", ".join(one.name for one in FAMILIES.values() if one.machines)
            raise OptionConflict(f"GKE does not have {topology.name}. Use one of {known}")
        machine = next((one for one in family.machines if one.grid == topology.grid), None)
        if machine is None:
            several = topology.chips > family.machine_chips
            reason = (
                "spans several machines, and a server runs on one" if several else "is not a machine of Google Cloud"
            )
            grids = ", ".join(f"{family.name}:{one.grid}" for one in family.machines)
            raise OptionConflict(f"{topology.name} {reason}. Use {grids}")
        return cls(topology, family.gke_accelerator, machine.machine_type, machine.memory_gib)

    @property
    def grid(self) -> str:
        """The value of the label cloud.google.com/gke-tpu-topology."""
        return self.topology.grid

    @property
    def chips(self) -> int:
        """The number of chips, which is the pod's request for google.com/tpu."""
        return self.topology.chips


_FORM: Final = re.compile(r"(?P<kind>[a-z][a-z0-9]*-[a-z0-9]+)(-(?P<cpus>[0-9]+)\w*)?", re.ASCII)
# GiB for each CPU, from Google's page "Configure compute resources for inference". Other types have an unknown memory.
_GIB_PER_CPU: Final = {
    "e2-standard": 4.0, "e2-highmem": 8.0, "e2-highcpu": 1.0,
    "n1-standard": 3.75, "n1-highmem": 6.5, "n1-highcpu": 0.9,
    "n2-standard": 4.0, "n2-highmem": 8.0, "n2-highcpu": 1.0,
    "n2d-standard": 4.0, "n2d-highmem": 8.0, "n2d-highcpu": 1.0,
    "c2-standard": 4.0,
    "c2d-standard": 4.0, "c2d-highmem": 8.0, "c2d-highcpu": 2.0,
    "c3-highcpu": 2.0,
}  # fmt: skip
# Types with less memory than the rule gives.
_GIB: Final = {"n2-highmem-128": 864.0}
# Prefixes of machine types with TPUs.
_TPU_TYPES: Final = ("ct", "tpu")


@dataclass(frozen=True, slots=True)
class VertexMachine:
    """One machine. `topology` is None for a machine without a TPU, and `memory_gib` None for an unknown memory."""

    machine_type: str
    memory_gib: float | None
    topology: TpuTopology | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the name of a type without a TPU, such as `n1-standard-4`. Raises OptionConflict."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise OptionConflict(f"{text!r} is not a machine type. Write a name such as n1-standard-4")
        if text.startswith(_TPU_TYPES):
            raise OptionConflict(f"{text} has a TPU. Use --tpu, such as --tpu v5e:2x2, which checks the version for it")
        per_cpu = _GIB_PER_CPU.get(found["kind"])
        by_rule = per_cpu * int(found["cpus"]) if per_cpu is not None and found["cpus"] else None
        return cls(text, _GIB.get(text, by_rule))

    @classmethod
    def of(cls, topology: TpuTopology) -> Self:
        """Return the machine that has all chips of `topology`. Raises OptionConflict if there is none."""
        if topology.family.name not in _VERTEX_FAMILIES:
            raise OptionConflict(f"Vertex AI has {' and '.join(_VERTEX_FAMILIES)}, and not {topology.name}")
        machine = GkeMachine.of(topology)
        return cls(machine.machine_type, machine.memory_gib, topology)

    def check_memory(self, needed_gib: int) -> None:
        """Raise DoesNotFit if the memory is known and smaller than `needed_gib`."""
        if self.memory_gib is not None and needed_gib > self.memory_gib:
            raise DoesNotFit(
                f"a server needs {needed_gib} GiB of memory, and {self.machine_type} has {self.memory_gib:g} GiB. Use "
                f"a larger {'TPU' if self.topology else '--machine-type'}"
            )
