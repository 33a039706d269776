"""The manifest of an exported version."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime

from tpuserve_exporter.options.export_options import ExportOptions
from tpuserve_exporter.signatures.labels import LABELS_FILE
from tpuserve_exporter.stages.checking import Checked
from tpuserve_exporter.version.fingerprint import make_fingerprint
from tpuserve_exporter.version.manifest import describe_files, describe_signature, describe_weights
from tpuserve_formats.manifest.version import (
    Manifest,
    ManifestCpu,
    ManifestParity,
    ManifestQuantized,
    ManifestSignatureParity,
    ManifestSource,
)


def make_manifest(checked: Checked, options: ExportOptions, advance: Callable[[int, int], None]) -> Manifest:
    """Describe a version whose other files are all written. Reads every file for its hash."""
    written, version = checked.written, checked.version
    source = written.source
    parities = [one.parity for one in version.signatures.values()]
    files = describe_files(written.folder, advance)
    signatures = {
        name: describe_signature(
            one.signature, one.samples, options.batch_sizes, one.rows_independent, options.sequences, one.deterministic
        )
        for name, one in version.signatures.items()
    }
    return Manifest(
        exporter_version=importlib.metadata.version("tpuserve-exporter"),
        created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=ManifestSource(
            kind=source.kind,
            name=source.name,
            step=source.step,
            builder=source.builder,
            weights=describe_weights(source.restore) if source.has_choice else None,
        ),
        compute_dtype=version.compute_dtype,
        cpu=ManifestCpu(allow_bfloat16_kernels="bfloat16" in version.compute_dtype),
        signatures=signatures,
        parity=ManifestParity(
            max_abs_difference=max(parity.max_abs_difference for parity in parities),
            atol=version.tolerance.atol,
            rtol=version.tolerance.rtol,
            rows=max(parity.rows for parity in parities),
            signatures={
                name: ManifestSignatureParity.model_validate(one.parity.to_json())
                for name, one in version.signatures.items()
            },
        ),
        quantized=None if source.quantized is None else ManifestQuantized(**asdict(source.quantized)),
        frozen=written.freezing,
        allowed_ops=written.allowed_ops,
        fingerprint=make_fingerprint(written.folder, signatures, version.compute_dtype, files, checked.device),
        labels=LABELS_FILE.as_posix() if LABELS_FILE.as_posix() in files else None,
        device=checked.device,
        files=dict(files),
    )
