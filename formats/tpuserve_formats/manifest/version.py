"""The manifest: all a server knows of a version besides the SavedModel itself. docs/manifest.md is its contract.

Fields that the server does not read are marked Unread. What it reads has defaults for manifests of older exporters.
"""

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tpuserve_formats.manifest import FORMAT_VERSION
from tpuserve_formats.manifest.device import ManifestDevice
from tpuserve_formats.manifest.part import Part, Unread
from tpuserve_formats.manifest.tensor import ManifestTensor

# JSON has null for infinity.
_Tolerance = Annotated[float, BeforeValidator(lambda limit: math.inf if limit is None else limit), Field(ge=0)]


class ManifestSignature(Part):
    """One signature, its buckets, and whether its rows may share them with other requests' rows."""

    inputs: dict[str, ManifestTensor] = Field(default_factory=dict)
    outputs: dict[str, ManifestTensor] = Field(default_factory=dict)
    batch_sizes: tuple[int, ...] = ()
    rows_independent: bool = False
    deterministic: Annotated[bool, Unread] = Field(default=True, exclude_if=lambda value: value)
    sequence_buckets: tuple[int, ...] = Field(default=(), exclude_if=lambda buckets: not buckets)


class ManifestWeights(Part):
    """Of an average, how many variables have one, and what the checkpoint calls the part that it was kept in."""

    taken: Literal["raw", "average"]
    averaged_variables: int | None = Field(default=None, exclude_if=lambda value: value is None)
    averages_from: str | None = Field(default=None, exclude_if=lambda value: value is None)


class ManifestSource(Part):
    """What was exported."""

    kind: str
    name: str
    step: int | None = None
    builder: str | None = None
    weights: ManifestWeights | None = Field(default=None, exclude_if=lambda value: value is None)


class ManifestCpu(Part):
    """What the CPU fallback may do."""

    allow_bfloat16_kernels: bool = False


class ManifestOutputParity(Part):
    """`top1_agreement` is None for outputs that are no scores of classes."""

    max_abs_difference: float | None
    mean_abs_difference: float | None
    top1_agreement: float | None


class ManifestBucketParity(Part):
    """The comparisons at one batch size."""

    batch_size: int | None
    padded: bool
    loaded_by: str
    comparisons: int
    outputs: dict[str, ManifestOutputParity]

    def __str__(self) -> str:
        size = "as it is" if self.batch_size is None else f"batch of {self.batch_size}"
        return f"{size}{', padded' if self.padded else ''}, {self.loaded_by}"


class ManifestSignatureParity(Part):
    """The comparisons of one signature."""

    rows: int
    comparisons: int
    outputs: dict[str, ManifestOutputParity]
    buckets: tuple[ManifestBucketParity, ...]

    def worst(self, output: str) -> ManifestBucketParity:
        """Where that output was off the most."""
        return max(self.buckets, key=lambda bucket: bucket.outputs[output].max_abs_difference or 0.0)


class ManifestParity(Part):
    """The differences from the source's answers, and the tolerance that they were held to."""

    max_abs_difference: Annotated[float, Unread] = 0.0
    atol: _Tolerance = math.inf
    rtol: _Tolerance = math.inf
    rows: Annotated[int, Unread] = 0
    signatures: Annotated[dict[str, ManifestSignatureParity], Unread] = Field(default_factory=dict)


class ManifestFreezing(Part):
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


class ManifestQuantized(Part):
    """`layers` with weights of 8 bits, and the bytes of all variables before and after."""

    mode: Literal["int8"] = "int8"
    layers: int
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        sizes = f"{self.bytes_before / 1e6:.3g} MB of weights became {self.bytes_after / 1e6:.3g} MB"
        return f"{self.layers} layer(s) in {self.mode}, {sizes}"


class ManifestFile(Part):
    """One file of the version."""

    sha256: str
    size_bytes: int = Field(ge=0)


class Manifest(Part):
    """All of it, as the exporter writes it; format version 1."""

    format_version: Literal[1] = FORMAT_VERSION
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
