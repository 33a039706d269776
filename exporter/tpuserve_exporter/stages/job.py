"""The objects that all stages of an export share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.checks.version_checks import Checks
from tpuserve_exporter.destinations.destination import Destination
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.programs.preflight import Preflight
from tpuserve_exporter.terms.progress import Progress

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

    `key` signs the version; None: the version has no signature.
    """

    options: ExportOptions
    progress: Progress
    warnings: Warnings
    destination: Destination
    labels: Sequence[str]
    checks: Checks
    preflight: Preflight | None
    key: "Ed25519PrivateKey | None" = None
