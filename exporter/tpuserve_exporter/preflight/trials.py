"""Trials: alternatives for a program that does not fit, each to be compiled."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpuserve_exporter.options.device_mesh import DeviceMesh, ShardRule, find_axes
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.preflight.compile_job import CompileJob, CompileOutcome
from tpuserve_exporter.preflight.program_shapes import ProgramShapes
from tpuserve_exporter.preflight.sharding import make_rules
from tpuserve_exporter.preflight.verdict import ProgramVerdict, gibibytes

# Grids that the compiler supports but no machine has.
_NO_MACHINE = ("1x2", "1x2x1")
_MOST_RULES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """An alternative compilation of a program: in `bfloat16` on the same devices, or on another mesh with its rules."""

    program: ProgramVerdict
    topology: TpuTopology
    mesh: DeviceMesh
    rules: tuple[ShardRule, ...]
    bfloat16: bool = False

    def job(self) -> CompileJob:
        return make_job(self.program, self.topology, self.mesh, self.rules, self.bfloat16)

    def fits(self, outcome: CompileOutcome) -> bool:
        return replace(self.program, topology=self.topology, mesh=self.mesh, outcome=outcome).passed

    def describe(self, outcome: CompileOutcome) -> str:
        """Describe a trial that fits, as a phrase to follow the advice's introduction."""
        size = gibibytes(outcome.hbm_bytes)
        if self.bfloat16:
            return f"with weights and layers in bfloat16 ({size})"
        shown = "".join(f" --shard '{rule}'" for rule in self.rules[:_MOST_RULES_SHOWN])
        more = len(self.rules) - _MOST_RULES_SHOWN
        others = f" and {more} more rule(s)" if more > 0 else ""
        return f"on {self.topology.name} with --mesh {self.mesh}{shown}{others} ({size} a device)"


def make_job(
    program: ProgramVerdict, topology: TpuTopology, mesh: DeviceMesh, rules: Sequence[ShardRule], bfloat16: bool = False
) -> CompileJob:
    """Make a compile job. Rows that `data` does not divide evenly are replicated, as in the server."""
    of = program.program
    cut = mesh.data > 1 and of.batch_size is not None and of.batch_size % mesh.data == 0
    return CompileJob(
        str(of.path), topology.name, mesh.data, mesh.model,
        tuple(rows and cut for rows in of.row_inputs), tuple(rows and cut for rows in of.row_outputs),
        tuple(find_axes(name, rules) if mesh.devices > 1 else () for name in of.weights), bfloat16,
    )  # fmt: skip


def list_trials(failed: ProgramVerdict, shapes: ProgramShapes, rules: Sequence[ShardRule]) -> Iterator[Trial]:
    """List the trials in order of cost: bfloat16 first, then more devices."""
    if shapes.has_float32:
        yield Trial(failed, failed.topology, failed.mesh, tuple(rules), bfloat16=True)
    for topology in (failed.topology, *failed.topology.larger()):
        if failed.mesh.devices < topology.devices == topology.machine_devices and topology.grid not in _NO_MACHINE:
            yield from _on_mesh(failed, topology, shapes, rules)


def _on_mesh(
    failed: ProgramVerdict, topology: TpuTopology, shapes: ProgramShapes, rules: Sequence[ShardRule]
) -> Iterator[Trial]:
    """Shard the weights if they are at least half of the needed memory, or else the batches."""
    size, devices = failed.program.batch_size, topology.devices
    if 2 * shapes.weights_bytes > (failed.needed_bytes or 0):
        weights = {name: (one.shape, one.size_bytes) for name, one in shapes.weights.items()}
        if made := tuple(rules) or make_rules(weights, devices):
            yield Trial(failed, topology, DeviceMesh(model=devices), made)
    elif size is not None and size % devices == 0:
        yield Trial(failed, topology, DeviceMesh(data=devices), tuple(rules))
