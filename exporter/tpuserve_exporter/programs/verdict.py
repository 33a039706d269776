"""The verdict on one program on one topology after compilation, with the text that reports print."""

from dataclasses import dataclass
from typing import Any, Literal

from tpuserve_exporter.options.device_mesh import DeviceMesh
from tpuserve_exporter.options.tpu_topology import GIB, TpuTopology
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
