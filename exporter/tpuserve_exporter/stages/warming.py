"""The stage that writes the warm-up requests of a version."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpuserve_exporter.samples.sample_files import open_samples
from tpuserve_exporter.samples.samples import check_lengths, read_samples
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.stages.checking import Checked
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_exporter.version.warmup import WARMUP_FILE, keep_warmup, write_warmup


@dataclass(frozen=True, slots=True)
class Warmed:
    """A checked version with `records` warm-up requests."""

    checked: Checked
    records: int


def warm_version(job: Job, checked: Checked, session: SessionModel) -> Warmed:
    """Write the requests, or keep the source's own, and run each in `session`. Raises SamplesUnfit."""
    options, folder = job.options, checked.written.folder
    if options.warmup is None and (folder / WARMUP_FILE).exists():
        with job.progress.step("Run the source's own warm-up requests"):
            everywhere = checked.version.everywhere
            return Warmed(checked, keep_warmup(folder, session, everywhere, options.sequences, job.warnings.add))
    with job.progress.step("Write warm-up requests") as step:
        name, inputs = job.destination.model_name, _choose_inputs(job, checked, session)
        records = write_warmup(folder, name, inputs, options.batch_sizes, session)
        step.detail = f"{records} record(s)"
        return Warmed(checked, records)


def _choose_inputs(job: Job, checked: Checked, session: SessionModel) -> Iterator[tuple[Signature, Tensors]]:
    options, version = job.options, checked.version
    file = None if options.warmup is None else open_samples(options.warmup, options.sequences.pad_values)
    for one in (version.signatures[name] for name in version.everywhere):
        rows = max(options.batch_sizes)
        samples = one.samples if file is None else read_samples(file, one.signature, rows, session)
        check_lengths(one.signature, samples, options.sequences, "--warmup")
        yield one.signature, samples
