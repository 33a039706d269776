"""The manifest: all a server knows of a version besides the SavedModel itself. docs/manifest.md is its contract."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tpuserve_exporter.options.export_options import PadValue, SequenceOptions
from tpuserve_exporter.restore_report import RestoreReport
from tpuserve_exporter.signature import Signature, TensorSpec
from tpuserve_exporter.version.manifest_device import ManifestDevice

MANIFEST_FILE = Path("assets.extra/tpuserve/manifest.json")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ManifestTensor(_Part):
    dtype: str
    shape: tuple[int | None, ...] | None
    pad_value: PadValue | None = Field(default=None, exclude_if=lambda value: value is None)
    row_splits: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)

    @classmethod
    def describe(cls, spec: TensorSpec, pad_value: PadValue | None = None) -> "ManifestTensor":
        return cls(dtype=spec.dtype, shape=spec.shape, pad_value=pad_value, row_splits=spec.row_splits)


class ManifestSignature(_Part):
    inputs: dict[str, ManifestTensor]
    outputs: dict[str, ManifestTensor]
    batch_sizes: tuple[int, ...]
    rows_independent: bool
    deterministic: bool = Field(default=True, exclude_if=lambda value: value)
    sequence_buckets: tuple[int, ...] = Field(default=(), exclude_if=lambda buckets: not buckets)

    @classmethod
    def describe(
        cls,
        signature: Signature,
        batch_sizes: tuple[int, ...],
        independent: bool,
        sequences: SequenceOptions,
        deterministic: bool = True,
    ) -> "ManifestSignature":
        pads = sequences.pad_values if signature.has_sequences else {}
        return cls(
            inputs={name: ManifestTensor.describe(spec, pads.get(name)) for name, spec in signature.inputs.items()},
            outputs={name: ManifestTensor.describe(spec) for name, spec in signature.outputs.items()},
            batch_sizes=batch_sizes if signature.is_batchable else (),
            rows_independent=independent,
            deterministic=deterministic,
            sequence_buckets=sequences.buckets if signature.has_sequences else (),
        )


class ManifestWeights(_Part):
    """Of an average, how many variables have one, and what the checkpoint calls the part that it was kept in."""

    taken: Literal["raw", "average"]
    averaged_variables: int | None = Field(default=None, exclude_if=lambda value: value is None)
    averages_from: str | None = Field(default=None, exclude_if=lambda value: value is None)

    @classmethod
    def describe(cls, restore: RestoreReport | None) -> "ManifestWeights":
        if restore is None or not restore.averages_from:
            return cls(taken="raw")
        return cls(taken="average", averaged_variables=restore.averaged, averages_from=restore.averages_from)


class ManifestSource(_Part):
    kind: str
    name: str
    step: int | None = None
    builder: str | None = None
    weights: ManifestWeights | None = Field(default=None, exclude_if=lambda value: value is None)


class ManifestCpu(_Part):
    allow_bfloat16_kernels: bool


class ManifestOutputParity(_Part):
    """`top1_agreement` is None for outputs that are no scores of classes."""

    max_abs_difference: float | None
    mean_abs_difference: float | None
    top1_agreement: float | None


class ManifestBucketParity(_Part):
    batch_size: int | None
    padded: bool
    loaded_by: str
    comparisons: int
    outputs: dict[str, ManifestOutputParity]

    def __str__(self) -> str:
        size = "as it is" if self.batch_size is None else f"batch of {self.batch_size}"
        return f"{size}{', padded' if self.padded else ''}, {self.loaded_by}"


class ManifestSignatureParity(_Part):
    rows: int
    comparisons: int
    outputs: dict[str, ManifestOutputParity]
    buckets: tuple[ManifestBucketParity, ...]

    def worst(self, output: str) -> ManifestBucketParity:
        """Where that output was off the most."""
        return max(self.buckets, key=lambda bucket: bucket.outputs[output].max_abs_difference or 0.0)


class ManifestParity(_Part):
    max_abs_difference: float
    atol: float
    rtol: float
    rows: int
    signatures: dict[str, ManifestSignatureParity] = Field(default_factory=dict)


class ManifestFreezing(_Part):
    """What was folded and computed at export, and how many operations of each kind were dropped."""

    folded: int
    computed: int
    dropped: dict[str, int]

    def __str__(self) -> str:
        done = []
        if self.folded:
            done.append(f"{self.folded} batch norm(s) or scale(s) folded into kernels")
        if self.computed:
            done.append(f"{self.computed} value(s) of weights computed")
        done += [f"{count} {operation} dropped" for operation, count in sorted(self.dropped.items())]
        return ", ".join(done) or "nothing to fold"


class ManifestQuantized(_Part):
    """`layers` with weights of 8 bits, and the bytes of all variables before and after."""

    mode: Literal["int8"] = "int8"
    layers: int
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        sizes = f"{self.bytes_before / 1e6:.3g} MB of weights became {self.bytes_after / 1e6:.3g} MB"
        return f"{self.layers} layer(s) in {self.mode}, {sizes}"


class ManifestFile(_Part):
    sha256: str
    size_bytes: int


class Manifest(_Part):
    """Format version 1."""

    format_version: Literal[1] = 1
    exporter_version: str
    created_at: str
    source: ManifestSource
    compute_dtype: str
    cpu: ManifestCpu
    signatures: dict[str, ManifestSignature]
    parity: ManifestParity
    quantized: ManifestQuantized | None = Field(default=None, exclude_if=lambda value: value is None)
    frozen: ManifestFreezing | None = Field(default=None, exclude_if=lambda value: value is None)
    fingerprint: str | None = Field(default=None, exclude_if=lambda value: value is None)
    labels: str | None = Field(default=None, exclude_if=lambda value: value is None)
    device: ManifestDevice | None = Field(default=None, exclude_if=lambda value: value is None)
    files: dict[str, ManifestFile]

    def write(self, version: Path) -> None:
        """Write it into a version directory, after every other file."""
        path = version / MANIFEST_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def describe_files(version: Path, advance: Callable[[int, int], None]) -> Mapping[str, ManifestFile]:
    """Size and SHA-256 of every file of a version but the manifest, by path relative to it. Reads them all.

    `advance` is told how many files are read, of how many.
    """
    paths = sorted(path for path in version.rglob("*") if path.is_file() and path != version / MANIFEST_FILE)
    described: dict[str, ManifestFile] = {}
    for done, path in enumerate(paths):
        advance(done, len(paths))
        name = path.relative_to(version).as_posix()
        described[name] = ManifestFile(sha256=hash_file(path), size_bytes=path.stat().st_size)
    return described


def hash_file(path: Path) -> str:
    """SHA-256, in hexadecimal digits. Reads all of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
