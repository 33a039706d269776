"""The stage that checks a version in a session, as servers load it, and runs the examples."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_exporter.checks.example_runner import ExampleRunner, ShownSample
from tpuserve_exporter.checks.version_checks import CheckedVersion
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.recording import Recorded
from tpuserve_exporter.stages.writing import Written
from tpuserve_exporter.terms.signature import Signature
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_formats.manifest.device import ManifestDevice


@dataclass(frozen=True, slots=True)
class Checked:
    """A version that passed the checks. `version` has their results, and `samples` the predictions for the report."""

    written: Written
    device: ManifestDevice | None
    version: CheckedVersion
    samples: tuple[ShownSample, ...]

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return {name: one.signature for name, one in self.version.signatures.items()}


def check_version(job: Job, recorded: Recorded, session: SessionModel) -> Checked:
    """Compare the outputs of `session`. Raises OptionConflict, SamplesUnfit, TrainingMode or ParityFailed."""
    written, device = recorded.written, recorded.device
    version = job.checks.run(written.source, recorded.results, written.folder, session, device)
    return Checked(written, device, version, _run_examples(job, version, session))


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
