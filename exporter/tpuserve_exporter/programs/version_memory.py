"""The device memory of all programs of a version together, and the number of such versions that fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Self

from tpuserve_exporter.options.device_mesh import DeviceMesh
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.programs.verdict import ProgramVerdict, gibibytes, in_gib

# The largest number of batches of one version that a server has in flight.
_IN_FLIGHT = 2

Together = Literal["fits", "does not fit", "not checked"]


@dataclass(frozen=True, slots=True)
class VersionMemory:
    """The memory of all programs on one device of a topology. Totals are None unless all programs compiled.

    The total counts weights once for all programs, and the code of each program. Programs run one at a time, so it
    counts only the largest temporaries. It also counts the inputs and outputs of two batches of the largest size.
    """

    topology: TpuTopology
    mesh: DeviceMesh
    verdicts: tuple[ProgramVerdict, ...]

    @classmethod
    def of_each(cls, verdicts: Sequence[ProgramVerdict]) -> Iterator[Self]:
        """Yield one instance for each topology, in order."""
        for (topology, mesh), ones in groupby(verdicts, key=lambda one: (one.topology, one.mesh)):
            yield cls(topology, mesh, tuple(ones))

    @property
    def weights_bytes(self) -> int:
        """The bytes of all weights. A weight that parts share counts once, with its largest size."""
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
        """Whether each program fits alone but all together do not."""
        return self.verdict == "does not fit" and all(one.passed for one in self.verdicts)

    @property
    def side_by_side(self) -> int | None:
        """The number of such versions that fit on the device, including this one, or None if unknown."""
        return None if self.needed_bytes is None else self.available_bytes // max(self.needed_bytes, 1)

    def explain(self) -> str:
        """Return a sentence on the missing memory, and on batch sizes that would fit."""
        needed = self.needed_bytes or 0
        head = (
            f"{self.topology.name}: each program fits, but not all programs together. They need {in_gib(needed)} of "
            f"{gibibytes(self.available_bytes)}, {gibibytes(needed - self.available_bytes)} too much, with two "
            "batches in flight"
        )
        kept = self._fitting_sizes()
        return f"{head}. These batch sizes fit: {', '.join(map(str, kept))}" if kept else head

    def _fitting_sizes(self) -> list[int]:
        """Return the batch sizes that remain after dropping as few of the largest as needed, or [] if none fit."""
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
