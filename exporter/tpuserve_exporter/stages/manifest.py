"""The manifest of an exported version."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tpuserve_exporter.checks.version_checks import CheckedVersion
from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.signatures.labels import LABELS_FILE
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.version.fingerprint import make_fingerprint
from tpuserve_exporter.version.manifest import (
    Manifest,
    ManifestCpu,
    ManifestFreezing,
    ManifestParity,
    ManifestQuantized,
    ManifestSignature,
    ManifestSignatureParity,
    ManifestSource,
    ManifestWeights,
    describe_files,
)
from tpuserve_exporter.version.manifest_device import ManifestDevice


def describe_version(
    source: OpenedSource,
    version: Path,
    checked: CheckedVersion,
    options: ExportOptions,
    frozen: ManifestFreezing | None,
    device: ManifestDevice | None,
    advance: Callable[[int, int], None],
) -> Manifest:
    """Describe a version whose other files are all written. Reads every file for its hash."""
    parities = [one.parity for one in checked.signatures.values()]
    files = describe_files(version, advance)
    signatures = {
        name: ManifestSignature.describe(
            one.signature, options.batch_sizes, one.rows_independent, options.sequences, one.deterministic
        )
        for name, one in checked.signatures.items()
    }
    return Manifest(
        exporter_version=importlib.metadata.version("tpuserve-exporter"),
        created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=ManifestSource(
            kind=source.kind,
            name=source.name,
            step=source.step,
            builder=source.builder,
            weights=ManifestWeights.describe(source.restore) if source.has_choice else None,
        ),
        compute_dtype=checked.compute_dtype,
        cpu=ManifestCpu(allow_bfloat16_kernels="bfloat16" in checked.compute_dtype),
        signatures=signatures,
        parity=ManifestParity(
            max_abs_difference=max(parity.max_abs_difference for parity in parities),
            atol=checked.tolerance.atol,
            rtol=checked.tolerance.rtol,
            rows=max(parity.rows for parity in parities),
            signatures={
                name: ManifestSignatureParity.model_validate(one.parity.to_json())
                for name, one in checked.signatures.items()
            },
        ),
        quantized=None if source.quantized is None else ManifestQuantized(**asdict(source.quantized)),
        frozen=frozen,
        fingerprint=make_fingerprint(version, signatures, checked.compute_dtype, files, device),
        labels=LABELS_FILE.as_posix() if LABELS_FILE.as_posix() in files else None,
        device=device,
        files=dict(files),
    )
