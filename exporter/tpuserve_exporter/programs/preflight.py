"""The preflight of a version: compiles every program for every topology, and advises on programs that do not fit."""

import importlib.metadata
import importlib.util
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import MissingExtra, SourceUnreadable
from tpuserve_exporter.options.tpu import DeviceMesh, ShardRule, TpuTopology, find_axes
from tpuserve_exporter.programs.compile_job import CompileJob, CompileOutcome
from tpuserve_exporter.programs.compiler_process import Compilers
from tpuserve_exporter.programs.verdict import ProgramVerdict, VersionMemory, gibibytes
from tpuserve_exporter.programs.version_programs import VersionProgram, VersionPrograms, check_rules, make_rules
from tpuserve_exporter.terms.progress import Progress, Step


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a program. `dtype` is the name in numpy or JAX."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramShapes:
    """The arguments of one program: inputs in order, and weights by name."""

    inputs: tuple[Argument, ...]
    weights: Mapping[str, Argument]

    @classmethod
    def read(cls, program: VersionProgram) -> "ProgramShapes":
        """Read the arguments of a program.

        Raises SourceUnreadable if the installed JAX cannot read it, or if the number of arguments differs from the
        manifest.
        """
        arguments = _read_arguments(program)
        inputs = len(program.row_inputs)
        if len(arguments) != inputs + len(program.weights):
            raise SourceUnreadable(
                f"the program {program.file} takes {len(arguments)} arguments, but the manifest lists "
                f"{inputs} input(s) and {len(program.weights)} weight(s)"
            )
        return cls(tuple(arguments[:inputs]), dict(zip(program.weights, arguments[inputs:], strict=True)))

    @property
    def weights_bytes(self) -> int:
        return sum(one.size_bytes for one in self.weights.values())

    @property
    def has_float32(self) -> bool:
        return any(one.dtype == "float32" for one in (*self.inputs, *self.weights.values()))


def _read_arguments(program: VersionProgram) -> Sequence[Argument]:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    try:
        avals = jax.export.deserialize(bytearray(program.path.read_bytes())).in_avals
    except Exception as error:  # invalid bytes raise many kinds of errors
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SourceUnreadable(f"jax {jax.__version__} cannot read the program {program.file}: {reason}") from error
    return [Argument(tuple(aval.shape), aval.dtype.name, math.prod(aval.shape) * aval.dtype.itemsize) for aval in avals]


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


# A batch size is not worth a program if the next larger size takes at most this many times as long.
_AS_LONG = 1.1


def advise(
    verdicts: Sequence[ProgramVerdict], tried: Mapping[ProgramVerdict, Sequence[tuple[Trial, CompileOutcome]]]
) -> list[str]:
    """Return a sentence for each program in `tried`, in the order of the verdicts.

    `tried` has the programs that did not fit, with the outcomes of their trials.
    """
    return [_advise_one(one, verdicts, tried[one]) for one in verdicts if one in tried]


def advise_machines(topologies: Iterable[TpuTopology], mesh: DeviceMesh) -> list[str]:
    """Return a sentence for each topology where `mesh` takes more than one machine.

    Such a program may compile, but a server runs on one machine.
    """
    return [
        f"{one.name} with --mesh {mesh} is compiled for {mesh.devices} devices on several machines with "
        f"{one.machine_devices} devices each. A server runs on one machine, so that it cannot serve these programs"
        for one in topologies
        if mesh.devices > one.machine_devices
    ]


def _advise_one(
    failed: ProgramVerdict, verdicts: Iterable[ProgramVerdict], trials: Sequence[tuple[Trial, CompileOutcome]]
) -> str:
    smaller = [one.program.bucket for one in verdicts if one.passed and _is_other_batch(one, failed)]
    fitting = [(trial, outcome) for trial, outcome in trials if trial.fits(outcome)]
    ways = [f"smaller batches: {', '.join(smaller)}"] if smaller else []
    ways += [trial.describe(outcome) for trial, outcome in fitting if trial.bfloat16]
    ways += [trial.describe(outcome) for trial, outcome in fitting if not trial.bfloat16][:1]
    head = f"{failed.topology.name}, batch {failed.program.bucket}: {failed}."
    if ways:
        return f"{head} These fit: {'; '.join(ways)}"
    tried = ["smaller batches"] if failed.program.batch_size is not None else []
    tried += ["bfloat16"] if any(trial.bfloat16 for trial, _ in trials) else []
    tried += [f"{trial.topology.name} with --mesh {trial.mesh}" for trial, _ in trials if not trial.bfloat16]
    return f"{head} None of these fits: {', '.join(tried)}" if tried else head


def _is_other_batch(one: ProgramVerdict, failed: ProgramVerdict) -> bool:
    return (one.program.part, one.topology, one.mesh, one.program.sequence_length) == (
        failed.program.part, failed.topology, failed.mesh, failed.program.sequence_length,
    )  # fmt: skip


def suggest_batch_sizes(verdicts: Sequence[ProgramVerdict]) -> tuple[int, ...]:
    """Return the checked sizes that fit on every topology, without sizes that are as slow as the next larger one.

    Compares the estimated latency at every sequence length. Returns () if no program fits or no program has rows.
    """
    by_size: dict[int, list[ProgramVerdict]] = {}
    for one in verdicts:
        if one.program.batch_size is not None:
            by_size.setdefault(one.program.batch_size, []).append(one)
    kept: list[int] = []
    for size in sorted((size for size, ones in by_size.items() if all(one.passed for one in ones)), reverse=True):
        if not kept or not _as_long(by_size[size], by_size[kept[-1]]):
            kept.append(size)
    return tuple(reversed(kept))


def _as_long(these: Sequence[ProgramVerdict], larger: Sequence[ProgramVerdict]) -> bool:
    """Return whether each program in `larger` takes about as long as the same program in `these`."""
    return all(_upper(two) <= _AS_LONG * _upper(one) for one, two in zip(_sorted(these), _sorted(larger), strict=True))


def _upper(one: ProgramVerdict) -> float:
    return one.latency.upper_s if one.latency is not None else float(one.program.batch_size or 1)


def _sorted(verdicts: Sequence[ProgramVerdict]) -> list[ProgramVerdict]:
    return sorted(verdicts, key=lambda one: (one.program.part, one.topology.name, one.program.sequence_length or 0))


def smallest_failing(verdicts: Sequence[ProgramVerdict]) -> list[ProgramVerdict]:
    """Return the smallest program that does not fit, for each part on each topology. Trials start with it."""
    failing = [one for one in _sorted(verdicts) if one.verdict == "does not fit"]
    of_part = groupby(failing, key=lambda one: (one.program.part, one.topology.name))
    return [min(ones, key=lambda one: one.program.batch_size or 0) for _, ones in of_part]


def rows_wasted(sizes: Iterable[int]) -> dict[int, float]:
    """Return the largest fraction of padding in a batch of each size: one row more than the next smaller size holds."""
    ordered = sorted(sizes)
    return {size: 1 - (before + 1) / size for before, size in zip([0, *ordered[:-1]], ordered, strict=True)}


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
