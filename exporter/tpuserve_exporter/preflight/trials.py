"""Ways to make a program fit that does not: each is tried, not guessed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpuserve_exporter.options.device_mesh import DeviceMesh, ShardRule, find_axes
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.preflight.compile_job import CompileJob, CompileOutcome
from tpuserve_exporter.preflight.program_shapes import ProgramShapes
from tpuserve_exporter.preflight.sharding import make_rules
from tpuserve_exporter.preflight.verdict import ProgramVerdict, gibibytes

# Grids that the compiler knows and no machine has.
_NO_MACHINE = ("1x2", "1x2x1")
_MOST_RULES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One program compiled otherwise. `bfloat16` is on the same devices, another mesh comes with its rules."""

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
        """After `batch 8`, where it fits."""
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
    """Rows that `data` does not divide go to every device, as the server has it."""
    of = program.program
    cut = mesh.data > 1 and of.batch_size is not None and of.batch_size % mesh.data == 0
    return CompileJob(
        str(of.path), topology.name, mesh.data, mesh.model,
        tuple(rows and cut for rows in of.row_inputs), tuple(rows and cut for rows in of.row_outputs),
        tuple(find_axes(name, rules) if mesh.devices > 1 else () for name in of.weights), bfloat16,
    )  # fmt: skip


def list_trials(failed: ProgramVerdict, shapes: ProgramShapes, rules: Sequence[ShardRule]) -> Iterator[Trial]:
    """In the order of what they take: other numbers first, then more devices."""
    if shapes.has_float32:
        yield Trial(failed, failed.topology, failed.mesh, tuple(rules), bfloat16=True)
    for topology in (failed.topology, *failed.topology.larger()):
        if failed.mesh.devices < topology.devices == topology.machine_devices and topology.grid not in _NO_MACHINE:
            yield from _on_mesh(failed, topology, shapes, rules)


def _on_mesh(
    failed: ProgramVerdict, topology: TpuTopology, shapes: ProgramShapes, rules: Sequence[ShardRule]
) -> Iterator[Trial]:
    """Weights cut where they are most of it, else batches."""
    size, devices = failed.program.batch_size, topology.devices
    if 2 * shapes.weights_bytes > (failed.needed_bytes or 0):
        weights = {name: (one.shape, one.size_bytes) for name, one in shapes.weights.items()}
        if made := tuple(rules) or make_rules(weights, devices):
            yield Trial(failed, topology, DeviceMesh(model=devices), made)
    elif size is not None and size % devices == 0:
        yield Trial(failed, topology, DeviceMesh(data=devices), tuple(rules))
