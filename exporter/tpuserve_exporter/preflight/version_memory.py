"""What all programs of a version take together of a device's memory, and what else has room beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Self

from tpuserve_exporter.options.device_mesh import DeviceMesh
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.preflight.verdict import ProgramVerdict, gibibytes, in_gib

# Batches on the device or on their way: what a server has there at most, of one version.
_IN_FLIGHT = 2

Together = Literal["fits", "does not fit", "not checked"]


@dataclass(frozen=True, slots=True)
class VersionMemory:
    """Of one device of a topology. None where a program has not been compiled: nobody knows then.

    Weights are there once, for all programs; the code of each; the temporaries of the largest, as programs run one
    after another; the inputs and outputs of two batches, of the size that takes most.
    """

    topology: TpuTopology
    mesh: DeviceMesh
    verdicts: tuple[ProgramVerdict, ...]

    @classmethod
    def of_each(cls, verdicts: Sequence[ProgramVerdict]) -> Iterator[Self]:
        """One for each topology, in their order."""
        for (topology, mesh), ones in groupby(verdicts, key=lambda one: (one.topology, one.mesh)):
            yield cls(topology, mesh, tuple(ones))

    @property
    def weights_bytes(self) -> int:
        """Of parts that share a weight, as large as the one has it where it takes most."""
        sizes: dict[str, int] = {}
        for one in self.verdicts:
            for name, size in zip(one.program.weights, one.outcome.weight_bytes, strict=True):
                sizes[name] = max(size, sizes.get(name, 0))
        return sum(sizes.values())

    @property
    def batches_bytes(self) -> int:
        return _IN_FLIGHT * max(one.outcome.input_bytes + one.outcome.output_bytes for one in self.verdicts)

    @property
    def temporary_bytes(self) -> int:
        return max(one.outcome.temporary_bytes for one in self.verdicts)

    @property
    def code_bytes(self) -> int:
        return sum(one.outcome.code_bytes for one in self.verdicts)

    @property
    def needed_bytes(self) -> int | None:
        if any(one.outcome.ending != "compiled" for one in self.verdicts):
            return None
        return self.weights_bytes + self.batches_bytes + self.temporary_bytes + self.code_bytes

    @property
    def available_bytes(self) -> int:
        return self.topology.family.hbm_bytes

    @property
    def verdict(self) -> Together:
        needed = self.needed_bytes
        if needed is not None:
            return "fits" if needed <= self.available_bytes else "does not fit"
        return "does not fit" if any(one.verdict == "does not fit" for one in self.verdicts) else "not checked"

    @property
    def passed(self) -> bool:
        return self.verdict == "fits"

    @property
    def is_too_much(self) -> bool:
        """Each of the programs fits, and all of them do not."""
        return self.verdict == "does not fit" and all(one.passed for one in self.verdicts)

    @property
    def side_by_side(self) -> int | None:
        """How many versions like it have room on the device, itself among them."""
        return None if self.needed_bytes is None else self.available_bytes // max(self.needed_bytes, 1)

    def explain(self) -> str:
        """How much it `is_too_much`, and which batch sizes would fit."""
        needed = self.needed_bytes or 0
        head = (
            f"{self.topology.name}: each program fits, all together do not: they need {in_gib(needed)} of "
            f"{gibibytes(self.available_bytes)}, {gibibytes(needed - self.available_bytes)} too much, with two batches "
            "in flight"
        )
        kept = self._fitting_sizes()
        return f"{head}. What fits: batch sizes {', '.join(map(str, kept))} alone" if kept else head

    def _fitting_sizes(self) -> list[int]:
        """Without the largest batches, as few as possible; empty where there are no others, or they do not fit."""
        sizes = sorted({one.program.batch_size for one in self.verdicts if one.program.batch_size is not None})
        while sizes := sizes[:-1]:
            rest = tuple(one for one in self.verdicts if one.program.batch_size in (None, *sizes))
            if VersionMemory(self.topology, self.mesh, rest).passed:
                break
        return sizes

    def to_json(self) -> dict[str, Any]:
        known = self.needed_bytes is not None
        return {
            "topology": self.topology.name,
            "mesh": {"data": self.mesh.data, "model": self.mesh.model},
            "verdict": self.verdict,
            "hbm_bytes": {
                "needed": self.needed_bytes,
                "available": self.available_bytes,
                "weights": self.weights_bytes if known else None,
                "batches": self.batches_bytes if known else None,
                "temporary": self.temporary_bytes if known else None,
                "code": self.code_bytes if known else None,
            },
            "side_by_side": self.side_by_side,
        }
