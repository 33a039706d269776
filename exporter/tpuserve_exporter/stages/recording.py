"""The stage that records outputs to compare: of the source, of the version in Python, and of its programs."""

from dataclasses import dataclass

from tpuserve_exporter.checks.case_runs import CaseResults
from tpuserve_exporter.stages.compiling import Compiled
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.writing import Written
from tpuserve_formats.manifest.device import DeviceNumerics, ManifestDevice


@dataclass(frozen=True, slots=True)
class Recorded:
    """A version, and the outputs to compare with those of a session. `device` has the results of --tpu-numerics.

    The source has released its weights.
    """

    written: Written
    device: ManifestDevice | None
    results: CaseResults


def record_answers(job: Job, compiled: Compiled) -> Recorded:
    """Run the source and then the version. Raises as Checks.record_answers."""
    written, device = compiled.written, compiled.device
    results = job.checks.record_answers(written.source, written.folder, device)
    if device is not None and results.numerics:
        found = DeviceNumerics(signatures={name: one.to_json() for name, one in results.numerics.items()})
        device = device.model_copy(update={"numerics": found})
    return Recorded(written, device, results)
