"""Exports checkpoints as checked, versioned SavedModels. Importing this package imports no framework."""

from tpuserve_exporter.api import ExportedVersion, export
from tpuserve_exporter.errors import (
    BuilderFailed,
    CannotLower,
    CheckpointMismatch,
    ExpectationFailed,
    ExportError,
    MissingExtra,
    OptionConflict,
    ParityFailed,
    PublishFailed,
    SamplesUnfit,
    SessionLoadFailed,
    SourceUnreadable,
    UnsafeSource,
    WeightsNotFinite,
)

__all__ = [
    "export",
    "ExportedVersion",
    "ExportError",
    "BuilderFailed",
    "CannotLower",
    "CheckpointMismatch",
    "ExpectationFailed",
    "MissingExtra",
    "OptionConflict",
    "ParityFailed",
    "PublishFailed",
    "SamplesUnfit",
    "SessionLoadFailed",
    "SourceUnreadable",
    "UnsafeSource",
    "WeightsNotFinite",
]
