"""The stage that compiles the programs of a version for the TPUs that --tpu names."""

from dataclasses import dataclass

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.programs.preflight import Preflight, PreflightReport, check_shard_rules
from tpuserve_exporter.programs.version_programs import VersionPrograms
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.writing import Written
from tpuserve_formats.manifest.device import DeviceShardRule, ManifestDevice


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
