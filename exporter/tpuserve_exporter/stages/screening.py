"""The stage that refuses a written version with operations that servers refuse, before anything runs it."""

from dataclasses import replace

from tpuserve_exporter.checks.python_functions import check_no_python
from tpuserve_exporter.sources.saved_model.unsafe import check_version
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.writing import Written


def screen_version(job: Job, written: Written) -> Written:
    """Check the SavedModel. Raises CannotLower for Python functions, and UnsafeOperation."""
    with job.progress.step("Check the operations"):
        check_no_python(written.folder)
        findings = check_version(written.folder, job.options.model.allowed_ops)
    if not findings:
        return written
    names = tuple(sorted({one.operation for one in findings}))
    described = "; ".join(map(str, findings))
    job.warnings.add(f"servers load this version only with --allowed_ops={','.join(names)}: {described}")
    return replace(written, allowed_ops=names)
