"""The objects that all stages of an export share, and the result of the export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuserve_exporter.checks.example_runner import ShownSample
from tpuserve_exporter.checks.labelled_rows import LabelledRows
from tpuserve_exporter.checks.serve_check import ServeCheck
from tpuserve_exporter.checks.touched_rows import TouchedTable
from tpuserve_exporter.checks.version_checks import Checks
from tpuserve_exporter.destinations.destination import Destination
from tpuserve_exporter.inspection.contents import StoredArray
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.programs.preflight import Preflight, PreflightReport
from tpuserve_exporter.terms.progress import Progress
from tpuserve_exporter.terms.provenance import Origins
from tpuserve_exporter.terms.restore_report import RestoreReport
from tpuserve_exporter.terms.signature import Signature
from tpuserve_formats.manifest.version import Manifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Warnings:
    """Warnings about a version that passes, in the order in which the stages add them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._messages: list[str] = []

    def add(self, message: str) -> None:
        """Show `message` at once, and keep it for the report."""
        self._messages.append(message)
        self._progress.warn(message)

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(self._messages)


@dataclass(frozen=True, slots=True)
class Job:
    """The options of one export, and the objects that its stages share. Only `warnings` changes while they run.

    `key` signs the version; None: the version has no signature. `labelled` is None without --labelled.
    """

    options: ExportOptions
    progress: Progress
    warnings: Warnings
    destination: Destination
    labels: Sequence[str]
    checks: Checks
    preflight: Preflight | None
    key: "Ed25519PrivateKey | None" = None
    labelled: LabelledRows | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """An export of the model `name` that passed every check.

    `version` and `path` are None before publication and after a dry run.

    If not `published`, they are those of an existing version with exactly this content. `variables` lists the variables
    in its files. `preprocessing` has a sentence for each preparation of inputs that the exporter chose itself.
    `examples` counts the user's examples: the version answers all of them as expected. `origins` has the origin of each
    value in the model, and `tables` the rows that the samples of the checks touch.
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
    origins: Origins = field(default_factory=dict)
    tables: tuple[TouchedTable, ...] = ()
