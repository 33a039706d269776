"""The stage that replaces the source's model with a model that computes less, with --freeze."""

from dataclasses import dataclass, replace
from pathlib import Path

from tpuserve_exporter.graphs.freeze import freeze
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.stages.job import Job
from tpuserve_formats.manifest.version import ManifestFreezing


@dataclass(frozen=True, slots=True)
class Frozen:
    """A source with the model to write. `freezing` is None if this is the source's own model."""

    source: OpenedSource
    freezing: ManifestFreezing | None = None


def freeze_model(job: Job, opened: OpenedSource) -> Frozen:
    """Fold the operations that depend only on weights. Raises CannotLower and BuilderFailed."""
    if not job.options.model.freeze or isinstance(opened.model, Path):
        return Frozen(opened)
    with job.progress.step("Fold batch norms and constants") as step:
        frozen = freeze(opened.model)
        freezing = ManifestFreezing(folded=frozen.folded, computed=frozen.computed, dropped=dict(frozen.dropped))
        step.detail = str(freezing)
    return Frozen(replace(opened, model=frozen.function), freezing)
