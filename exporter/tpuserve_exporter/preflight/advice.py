"""Advice on programs that do not fit, and suggested batch sizes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from tpuserve_exporter.options.device_mesh import DeviceMesh
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.preflight.compile_job import CompileOutcome
from tpuserve_exporter.preflight.trials import Trial
from tpuserve_exporter.preflight.verdict import ProgramVerdict

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
