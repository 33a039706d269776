"""Verdicts after compilation: on one program, and on the device memory of all programs of a version together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Self

from tpuserve_exporter.options.tpu import GIB, DeviceMesh, TpuTopology
from tpuserve_exporter.programs.compile_job import CompileOutcome
from tpuserve_exporter.programs.version_programs import VersionProgram

Verdict = Literal["compiles and fits", "does not fit", "does not compile", "not checked"]


@dataclass(frozen=True, slots=True)
class Latency:
    """An estimate in seconds. `lower_s` is the time of arithmetic, or of reading and writing each buffer once.

    `upper_s` is about the time of all memory traffic.
    """

    lower_s: float
    upper_s: float


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """The verdict on one program, for one topology and a `mesh` of its devices. Sizes are for one device."""

    program: VersionProgram
    topology: TpuTopology
    mesh: DeviceMesh
    outcome: CompileOutcome

    @property
    def available_bytes(self) -> int:
        """The compiler's memory limit for a program."""
        return self.outcome.available_bytes or self.topology.family.hbm_bytes

    @property
    def needed_bytes(self) -> int | None:
        if self.outcome.ending == "compiled":
            return self.outcome.hbm_bytes
        return self.outcome.needed_bytes

    @property
    def verdict(self) -> Verdict:
        ending = self.outcome.ending
        if ending == "compiled":
            return "compiles and fits" if self.outcome.hbm_bytes <= self.available_bytes else "does not fit"
        return "does not fit" if ending == "too large" else "does not compile" if ending == "refused" else "not checked"

    @property
    def passed(self) -> bool:
        return self.verdict == "compiles and fits"

    def __str__(self) -> str:
        """Return the verdict with its reason: `does not fit: needs 18.20 of 15.75 GiB, 2.45 GiB too much`."""
        if self.verdict == "does not fit" and self.needed_bytes is not None:
            missing = gibibytes(self.needed_bytes - self.available_bytes)
            needed, available = in_gib(self.needed_bytes), gibibytes(self.available_bytes)
            return f"does not fit: needs {needed} of {available}, {missing} too much"
        reason = self.outcome.reason
        return f"{self.verdict}: {reason}" if reason and not self.passed else self.verdict

    @property
    def latency(self) -> Latency | None:
        """The estimated latency, or None if it is unknown. The lower bound counts arguments once.

        It counts less if the program reads only a part of them, such as rows of an embedding table.
        """
        out, family = self.outcome, self.topology.family
        if out.ending != "compiled" or out.bytes_accessed is None:
            return None
        once = min(out.argument_bytes + out.output_bytes, out.bytes_accessed)
        lower = max((out.flops or 0.0) / family.flops_per_s, once / family.bytes_per_s)
        return Latency(lower, max(lower, out.bytes_accessed / family.bytes_per_s))

    @property
    def layout_padding(self) -> float | None:
        """The memory of arguments and outputs divided by their logical size. A (10,) float32 takes tiles of 8 x 128."""
        out = self.outcome
        return (out.argument_bytes + out.output_bytes) / out.logical_bytes if out.logical_bytes else None

    def to_json(self) -> dict[str, Any]:
        out, latency = self.outcome, self.latency
        return {
            "part": self.program.part,
            "topology": self.topology.name,
            "mesh": {"data": self.mesh.data, "model": self.mesh.model},
            "batch_size": self.program.batch_size,
            "sequence_length": self.program.sequence_length,
            "verdict": self.verdict,
            "reason": str(self),
            "hbm_bytes": {
                "needed": self.needed_bytes,
                "available": self.available_bytes,
                "arguments": out.argument_bytes,
                "outputs": out.output_bytes,
                "temporary": out.temporary_bytes,
                "code": out.code_bytes,
            },
            "compile_s": out.compile_s,
            "flops": out.flops,
            "bytes_accessed": out.bytes_accessed,
            "latency_s_estimate": None if latency is None else [latency.lower_s, latency.upper_s],
            "layout_padding": self.layout_padding,
        }


def in_gib(size_bytes: int) -> str:
    """Return a size in GiB with a few digits: `18.20`, `0.0031`."""
    gib = size_bytes / GIB
    return f"{gib:.2f}" if gib >= 1 else f"{gib:.2g}"


def gibibytes(size_bytes: int) -> str:
    return f"{in_gib(size_bytes)} GiB"


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
