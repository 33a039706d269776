"""The directory in which stages write a version before they publish it. The export removes it at the end."""

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.destinations.disk_errors import disk_errors
from tpuserve_exporter.models.weights_check import named_variables
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.stages.freezing import Frozen
from tpuserve_exporter.stages.job import Job


@contextlib.contextmanager
def staging_folder(job: Job, frozen: Frozen) -> Iterator[Path]:
    """Yield a path for the version while the body runs. Raises PublishFailed, also for disk errors in the body."""
    needed_bytes = functools.partial(estimate_size, frozen.source)
    with _open_folder(job) as folder, disk_errors(folder, _place(job.options), needed_bytes):
        yield folder


@contextlib.contextmanager
def _open_folder(job: Job) -> Iterator[Path]:
    """Yield a path next to the versions, to be renamed into place. A dry run uses a temporary directory instead."""
    if not job.options.dry_run:
        with job.destination.staging() as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory() as elsewhere:
        yield Path(elsewhere, "version")


def _place(options: ExportOptions) -> str:
    """Return the name of the version's directory in error messages."""
    base = options.out_base
    return str(base) if isinstance(base, Path) and not options.dry_run else "the temporary directory (TMPDIR)"


def estimate_size(source: OpenedSource) -> int:
    """Estimate the bytes of a version from the source's files or variables."""
    if isinstance(source.model, Path):
        return sum(path.stat().st_size for path in source.model.rglob("*") if path.is_file())
    variables = (variable for _, variable in named_variables(source.model.trackables))
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
