"""The result of an export, for reports and the Python API."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_exporter.checks.example_runner import ShownSample
from tpuserve_exporter.checks.serve_check import ServeCheck
from tpuserve_exporter.inspection.contents import StoredArray
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.programs.preflight import PreflightReport
from tpuserve_exporter.terms.restore_report import RestoreReport
from tpuserve_exporter.terms.signature import Signature
from tpuserve_formats.manifest.version import Manifest


@dataclass(frozen=True, slots=True)
class Exported:
    """An export of the model `name` that passed every check.

    `version` and `path` are None before publication and after a dry run.

    If not `published`, they are those of an existing version with exactly this content. `variables` lists the variables
    in its files. `preprocessing` has a sentence for each preparation of inputs that the exporter chose itself.
    `examples` counts the user's examples: the version answers all of them as expected.
    """

    name: str
    version: int | None
    path: OutBase | None
    manifest: Manifest
    signatures: Mapping[str, Signature]
    restore: RestoreReport | None
    warmup_records: int
    warnings: tuple[str, ...]
    published: bool = True
    serve_check: ServeCheck | None = None
    variables: tuple[StoredArray, ...] = ()
    preflight: PreflightReport | None = None
    samples: tuple[ShownSample, ...] = ()
    preprocessing: tuple[str, ...] = ()
    examples: int = 0
