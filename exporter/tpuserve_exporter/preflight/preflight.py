"""The preflight of a version: compiles every program for every topology, and advises on programs that do not fit."""

import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import MissingExtra
from tpuserve_exporter.options.device_mesh import DeviceMesh, ShardRule
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.preflight.advice import (
    advise,
    advise_machines,
    rows_wasted,
    smallest_failing,
    suggest_batch_sizes,
)
from tpuserve_exporter.preflight.compile_job import CompileJob, CompileOutcome
from tpuserve_exporter.preflight.compiler_process import Compilers
from tpuserve_exporter.preflight.program_shapes import ProgramShapes
from tpuserve_exporter.preflight.sharding import check_rules
from tpuserve_exporter.preflight.trials import Trial, list_trials, make_job
from tpuserve_exporter.preflight.verdict import ProgramVerdict
from tpuserve_exporter.preflight.version_memory import VersionMemory
from tpuserve_exporter.preflight.version_programs import VersionProgram, VersionPrograms
from tpuserve_exporter.progress import Progress, Step


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The result of a preflight. `together` has the memory of all programs on each topology.

    `advice` has a sentence for each program that does not fit. It also has one for each topology that cannot hold all
    programs together, and for each topology with a mesh larger than one machine. `batch_sizes` are suggestions from
    estimates. `fingerprint` is that of the version, if it has one.
    """

    verdicts: tuple[ProgramVerdict, ...]
    together: tuple[VersionMemory, ...]
    advice: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    compiler: str
    fingerprint: str | None = None

    @property
    def passed(self) -> bool:
        return not self.failures and all(one.passed for one in self.together)

    @property
    def failures(self) -> list[ProgramVerdict]:
        return [one for one in self.verdicts if not one.passed]

    def warnings(self) -> list[str]:
        """Return the advice, and each other reason for a failure once."""
        others = [one for one in self.failures if one.verdict != "does not fit"]
        reasons = dict.fromkeys(f"{one.topology.name}, batch {one.program.bucket}: {one}" for one in others)
        return [*self.advice, *reasons]

    def explain(self) -> str:
        """Return the error message of an export that requires all programs to pass."""
        failed = (
            f"{len(self.failures)} of {len(self.verdicts)} programs do not compile or do not fit on the TPUs of --tpu"
        )
        return ". ".join([*([failed] if self.failures else []), *self.warnings()])

    def to_json(self) -> list[dict[str, Any]]:
        """Return the verdict of each program on each topology, for the manifest and the report."""
        return [{**one.to_json(), "rows_padding_at_most": self._wasted(one.program)} for one in self.verdicts]

    def together_to_json(self) -> list[dict[str, Any]]:
        """Return the memory of all programs on each topology, for the manifest and the report."""
        return [one.to_json() for one in self.together]

    def _wasted(self, program: VersionProgram) -> float | None:
        sizes = {one.program.batch_size for one in self.verdicts if one.program.batch_size is not None}
        return None if program.batch_size is None else round(rows_wasted(sizes)[program.batch_size], 3)


def check_compiler() -> str:
    """Return the compiler's name and version. Raises MissingExtra if it is not installed."""
    absent = [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingExtra(
            f"--tpu needs {' and '.join(absent)}. Run pip install 'tpuserve-exporter[tpu]' on Linux on x86-64, the "
            "only platform of Google's compiler"
        )
    return f"libtpu {importlib.metadata.version('libtpu')}, jax {importlib.metadata.version('jax')}"


class Preflight:
    """One preflight run, to be used once. `run` blocks, and the compilers run in separate processes."""

    def __init__(
        self, topologies: Sequence[TpuTopology], mesh: DeviceMesh, rules: Sequence[ShardRule], progress: Progress
    ) -> None:
        """Check the options. Without `rules`, the version's rules apply.

        Raises MissingExtra if no compiler is installed, and OptionConflict if `mesh` does not fit a topology.
        """
        self._compiler = check_compiler()
        for topology in topologies:
            mesh.check(topology)
        self._topologies = topologies
        self._mesh = mesh
        self._rules = tuple(rules)
        self._progress = progress

    def run(self, read: VersionPrograms) -> PreflightReport:
        """Compile all programs, and try alternatives for programs that do not fit.

        Raises SourceUnreadable for an invalid program, and OptionConflict for rules that do not fit the weights.
        """
        rules = self._rules or read.rules
        shapes = {program.path: ProgramShapes.read(program) for program in read.programs}
        check_rules(self._rules or (rules if self._mesh.devices > 1 else ()), _weights(shapes.values()), self._mesh)
        with Compilers() as compilers:
            verdicts = self._compile(compilers, read.programs, rules)
            tried = self._try(compilers, verdicts, shapes, rules)
        together = tuple(VersionMemory.of_each(verdicts))
        advice = [
            *advise(verdicts, tried),
            *(one.explain() for one in together if one.is_too_much),
            *advise_machines(self._topologies, self._mesh),
        ]
        return PreflightReport(
            tuple(verdicts),
            together,
            tuple(advice),
            suggest_batch_sizes(verdicts),
            self._compiler,
            read.fingerprint,
        )

    def _compile(
        self, compilers: Compilers, programs: Sequence[VersionProgram], rules: Sequence[ShardRule]
    ) -> list[ProgramVerdict]:
        unknown = CompileOutcome("unknown")
        requested = [
            ProgramVerdict(program, topology, self._mesh, unknown)
            for topology in self._topologies
            for program in programs
        ]
        # Start the slowest jobs first. Otherwise, processors would wait for the last one.
        order = sorted(requested, key=lambda one: -(one.program.batch_size or 0))
        jobs = [make_job(one, one.topology, one.mesh, rules) for one in order]
        names = ", ".join(topology.name for topology in self._topologies)
        with self._progress.step(f"Compile for {names}") as step:
            outcomes = dict(zip(order, _run(compilers, jobs, step), strict=True))
            verdicts = [replace(one, outcome=outcomes[one]) for one in requested]
            step.detail = f"{sum(one.passed for one in verdicts)} of {len(verdicts)} compile and fit"
        return verdicts

    def _try(
        self,
        compilers: Compilers,
        verdicts: Sequence[ProgramVerdict],
        shapes: Mapping[Path, ProgramShapes],
        rules: Sequence[ShardRule],
    ) -> dict[ProgramVerdict, list[tuple[Trial, CompileOutcome]]]:
        failing = smallest_failing(verdicts)
        trials = [trial for one in failing for trial in list_trials(one, shapes[one.program.path], rules)]
        tried: dict[ProgramVerdict, list[tuple[Trial, CompileOutcome]]] = {one: [] for one in failing}
        if not trials:
            return tried
        with self._progress.step("Try alternatives that may fit") as step:
            outcomes = _run(compilers, [trial.job() for trial in trials], step)
            for trial, outcome in zip(trials, outcomes, strict=True):
                tried[trial.program].append((trial, outcome))
            step.detail = f"{len(trials)} alternative(s)"
        return tried


def check_shard_rules(read: VersionPrograms, rules: Sequence[ShardRule]) -> None:
    """Raise OptionConflict for a rule that matches no weight, and SourceUnreadable for an invalid program."""
    check_rules(rules, _weights(ProgramShapes.read(program) for program in read.programs), DeviceMesh())


def _weights(shapes: Iterable[ProgramShapes]) -> dict[str, tuple[int, ...]]:
    return {name: one.shape for of_program in shapes for name, one in of_program.weights.items()}


def _run(compilers: Compilers, jobs: Sequence[CompileJob], step: Step) -> list[CompileOutcome]:
    """Run the jobs and return their outcomes in the same order."""
    outcomes: dict[int, CompileOutcome] = {}
    step.advance(0, len(jobs))
    for number, outcome in compilers.run(jobs):
        outcomes[number] = outcome
        step.advance(len(outcomes), len(jobs))
    return [outcomes[number] for number in range(len(jobs))]
