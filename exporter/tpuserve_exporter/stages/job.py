"""What every stage of one export is given."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_exporter.checks.version_checks import Checks
from tpuserve_exporter.destinations.destination import Destination
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.preflight.preflight import Preflight
from tpuserve_exporter.progress import Progress


class Warnings:
    """What a user should know of a version that passes, in the order of its discovery: shown at once, and kept."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._messages: list[str] = []

    def add(self, message: str) -> None:
        """Keep `message`, and show it."""
        self._messages.append(message)
        self._progress.warn(message)

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(self._messages)


@dataclass(frozen=True, slots=True)
class Job:
    """One export that was asked for, and what its stages share. Only `warnings` changes while they run."""

    options: ExportOptions
    progress: Progress
    warnings: Warnings
    destination: Destination
    labels: Sequence[str]
    checks: Checks
    preflight: Preflight | None
