"""The stage that writes the manifest, after all other files."""

from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.inspection.contents import StoredArray
from tpuserve_exporter.inspection.variables_files import list_served
from tpuserve_exporter.stages.checking import Checked
from tpuserve_exporter.stages.job import Job
from tpuserve_exporter.stages.manifest import make_manifest
from tpuserve_exporter.stages.warming import Warmed
from tpuserve_exporter.version.manifest import write_manifest
from tpuserve_formats.manifest.version import Manifest


@dataclass(frozen=True, slots=True)
class Described:
    """A version with all its files. `variables` lists the variables in them."""

    checked: Checked
    manifest: Manifest
    variables: tuple[StoredArray, ...]

    @property
    def folder(self) -> Path:
        return self.checked.written.folder


def describe_version(job: Job, warmed: Warmed) -> Described:
    """Read every file for its hash, and write the manifest."""
    checked = warmed.checked
    folder = checked.written.folder
    variables = list_served(folder)
    with job.progress.step("Hash every file") as step:
        manifest = make_manifest(checked, job.options, step.advance)
        write_manifest(manifest, folder)
        step.detail = f"{len(manifest.files)} file(s)"
    return Described(checked, manifest, variables)
