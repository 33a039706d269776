"""What every kind of source comes to: something that writes a SavedModel, and something to compare it with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.loaded_model import Runnable
from tpuserve_exporter.options import SourceKind
from tpuserve_exporter.restore_report import RestoreReport


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source that was read and understood.

    `write` puts a SavedModel into a directory that does not exist yet. `reference` answers as the source model does;
    None where the SavedModel is itself the source. `compute_dtype` is a Keras policy name, None where only the written
    graph can tell.
    """

    kind: SourceKind
    name: str
    write: Callable[[Path], None]
    reference: Runnable | None = None
    compute_dtype: str | None = None
    step: int | None = None
    builder: str | None = None
    restore: RestoreReport | None = None
