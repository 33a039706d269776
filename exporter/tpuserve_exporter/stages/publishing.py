"""The stage that publishes a version, unless the newest version has exactly the same content."""

import functools
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.serving import Served
from tpuserve_exporter.version.fingerprint import holds
from tpuserve_exporter.version.signing import is_signed_by, sign_version
from tpuserve_formats.manifest.version import Manifest
from tpuserve_formats.signing.keys import key_id


@dataclass(frozen=True, slots=True)
class Published:
    """The version with the exported content. `version` and `path` are None after a dry run.

    If not `new`, the version existed before this export.
    """

    version: int | None = None
    path: OutBase | None = None
    new: bool = True


def publish_version(job: Job, served: Served) -> Published:
    """Publish the version, unless this is a dry run or the version exists. Raises PublishFailed."""
    options, described = job.options, served.described
    same = None if options.dry_run or options.again else _find_same(job, described.manifest)
    if same is not None:
        return Published(same, job.destination.locate(same), new=False)
    return Published() if options.dry_run else _publish(job, described.folder)


def _find_same(job: Job, manifest: Manifest) -> int | None:
    """Return the newest version's number if it has the same content, and with --sign a signature by the same key.

    Return None for an explicit --version.
    """
    newest = None if isinstance(job.options.version, int) else job.destination.newest()
    if newest is None or not holds(newest, manifest):
        return None
    needs_signature = job.key is not None and not is_signed_by(newest, job.key, job.destination.model_name)
    return None if needs_signature else newest.number


def _publish(job: Job, folder: Path) -> Published:
    with job.progress.step("Publish") as step:
        version = job.destination.publish(folder, job.options.version, functools.partial(_seal, job, folder))
        path = job.destination.locate(version)
        step.detail = str(path) if job.key is None else f"{path}, signed by {key_id(job.key.public_key())}"
    return Published(version, path)


def _seal(job: Job, folder: Path, number: int) -> None:
    if job.key is not None:
        sign_version(folder, job.destination.model_name, number, job.key)
