"""The stages that check a version: programs for TPUs, recorded outputs, a session as servers load it, examples."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_exporter.checks.case_runs import CaseResults
from tpuserve_exporter.checks.evaluation import evaluate, require
from tpuserve_exporter.checks.example_runner import ExampleRunner, ShownSample
from tpuserve_exporter.checks.version_checks import CheckedVersion
from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.programs.preflight import Preflight, PreflightReport, check_shard_rules
from tpuserve_exporter.programs.version_programs import VersionPrograms
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.writing import Written
from tpuserve_exporter.terms.signature import Signature
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_formats.manifest.device import DeviceNumerics, DeviceShardRule, ManifestDevice
from tpuserve_formats.manifest.version import ManifestEvaluation


@dataclass(frozen=True, slots=True)
class Compiled:
    """A written version. `device` has the rules of --shard and the results of `preflight`, which --tpu enables."""

    written: Written
    device: ManifestDevice | None = None
    preflight: PreflightReport | None = None


def compile_programs(job: Job, written: Written) -> Compiled:
    """Check the rules, and compile for the TPUs of --tpu. Raises OptionConflict, and CannotLower with --tpu-strict."""
    if written.device is None:
        return Compiled(written)
    rules = job.options.tpu.rules
    shard = tuple(DeviceShardRule.model_validate(rule.to_json()) for rule in rules)
    device = written.device.model_copy(update={"shard": shard})
    programs = VersionPrograms.describe(written.folder, device.model_dump())
    if job.preflight is None:
        check_shard_rules(programs, rules)
        return Compiled(written, device)
    report = _run_preflight(job, job.preflight, programs)
    found = {"preflight": tuple(report.to_json()), "preflight_together": tuple(report.together_to_json())}
    return Compiled(written, device.model_copy(update=found), report)


def _run_preflight(job: Job, preflight: Preflight, programs: VersionPrograms) -> PreflightReport:
    report = preflight.run(programs)
    if not report.passed and job.options.tpu.strict:
        raise CannotLower(
            report.explain(),
            preflight=report.to_json(),
            preflight_together=report.together_to_json(),
            preflight_advice=list(report.advice),
        )
    for warning in report.warnings():
        job.warnings.add(warning)
    return report


@dataclass(frozen=True, slots=True)
class Recorded:
    """A version, and the outputs to compare with those of a session. `device` has the results of --tpu-numerics.

    The source has released its weights.
    """

    written: Written
    device: ManifestDevice | None
    results: CaseResults


def record_answers(job: Job, compiled: Compiled) -> Recorded:
    """Run the source and then the version. Raises as CaseRunner.run."""
    written, device = compiled.written, compiled.device
    results = job.checks.cases.run(written.source, written.folder, device)
    if device is not None and results.numerics:
        found = DeviceNumerics(signatures={name: one.to_json() for name, one in results.numerics.items()})
        device = device.model_copy(update={"numerics": found})
    return Recorded(written, device, results)


@dataclass(frozen=True, slots=True)
class Checked:
    """A version that passed the checks. `version` has their results, and `samples` the predictions for the report.

    `evaluation` has the metrics of --expect, or is None without --labelled.
    """

    written: Written
    device: ManifestDevice | None
    version: CheckedVersion
    samples: tuple[ShownSample, ...]
    evaluation: ManifestEvaluation | None = None

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return {name: one.signature for name, one in self.version.signatures.items()}


def check_version(job: Job, recorded: Recorded, session: SessionModel) -> Checked:
    """Compare the outputs of `session`, then evaluate it.

    Raises OptionConflict, SamplesUnfit, TrainingMode, ParityFailed or ExpectationFailed.
    """
    written, device = recorded.written, recorded.device
    version = job.checks.run(written.source, recorded.results, written.folder, session, device)
    samples = _run_examples(job, version, session)
    return Checked(written, device, version, samples, _evaluate(job, version, session))


def _evaluate(job: Job, version: CheckedVersion, session: SessionModel) -> ManifestEvaluation | None:
    if job.labelled is None:
        return None
    with job.progress.step(f"Evaluate the version on {job.labelled.name}") as step:
        found = evaluate(job.labelled, session.signatures, session, job.options.batch_sizes, step.advance)
        require(found)
        step.detail = ", ".join(f"{one.metric} {one.shown}" for one in found.metrics)
    for name in dict.fromkeys(one.signature for one in found.metrics):
        checked = version.signatures[name]
        if checked.signature.is_batchable and not checked.rows_independent:
            job.warnings.add(
                f"metrics of {name} are those of requests with {max(job.options.batch_sizes)} rows, because rows may "
                "depend on each other. --batch-sizes sets the rows"
            )
    return found


def _run_examples(job: Job, version: CheckedVersion, session: SessionModel) -> tuple[ShownSample, ...]:
    options = job.options
    title = "Run the examples" if options.examples else "Run sample inputs"
    with job.progress.step(title) as step:
        rows_from = "made-up input" if options.check is None else options.check.name
        runner = ExampleRunner(session, version, options.signatures, job.labels, rows_from)
        samples = tuple(runner.run(options.examples))
        if options.examples:
            step.detail = f"{len(options.examples)} correct"
    counts = {one.prediction.count for one in samples if one.prediction.count}
    if job.labels and counts and len(job.labels) not in counts:
        found = " or ".join(map(str, sorted(counts)))
        job.warnings.add(f"--labels has {len(job.labels)} classes, but the scores have {found}")
    return samples
