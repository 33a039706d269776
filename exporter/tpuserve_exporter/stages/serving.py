"""The stage that serves a version with a real server, with --serve-check."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_exporter.serve_check.serve_check import ServeCheck, ServedRequest, check_serving, make_requests
from tpuserve_exporter.stages.checking import Checked
from tpuserve_exporter.stages.describing import Described
from tpuserve_exporter.stages.job import Job


@dataclass(frozen=True, slots=True)
class Served:
    """A version that is ready to publish. `answers` is None without --serve-check."""

    described: Described
    answers: ServeCheck | None = None


def choose_requests(job: Job, checked: Checked) -> Sequence[ServedRequest]:
    """Choose the requests to the server. The checks' session must be open: it may compute the expected outputs."""
    return make_requests(checked.version, job.options.batch_sizes) if job.options.serve_check else ()


def serve_version(job: Job, described: Described, requests: Sequence[ServedRequest]) -> Served:
    """Start a server and compare its predictions. Blocks. Raises MissingExtra, SessionLoadFailed or ParityFailed."""
    if not job.options.serve_check:
        return Served(described)
    with job.progress.step("Serve the version and compare its answers") as step:
        tolerance = described.checked.version.tolerance
        name, allowed = job.destination.model_name, described.manifest.allowed_ops
        answers = check_serving(described.folder, name, requests, tolerance, allowed)
        step.detail = str(answers)
    return Served(described, answers)
