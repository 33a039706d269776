"""The stage that records outputs to compare: of the source, of the version in Python, and of its programs."""

from dataclasses import dataclass

from tpuserve_exporter.checks.asking import Asked
from tpuserve_exporter.checks.python_functions import check_no_python
from tpuserve_exporter.stages.compiling import Compiled
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.writing import Written
from tpuserve_formats.manifest.device import DeviceNumerics, ManifestDevice


@dataclass(frozen=True, slots=True)
class Answered:
    """A version, and the outputs to compare with those of a session. `device` has the results of --tpu-numerics.

    The source has released its weights.
    """

    written: Written
    device: ManifestDevice | None
    asked: Asked


def record_answers(job: Job, compiled: Compiled) -> Answered:
    """Run the source and then the version. Raises CannotLower for Python functions, and the errors of Checks.ask."""
    written, device = compiled.written, compiled.device
    check_no_python(written.folder)
    asked = job.checks.ask(written.source, written.folder, device)
    if device is not None and asked.numerics:
        found = DeviceNumerics(signatures={name: one.to_json() for name, one in asked.numerics.items()})
        device = device.model_copy(update={"numerics": found})
    return Answered(written, device, asked)
