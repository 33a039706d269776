"""The manifest: all properties of a version outside its SavedModel. docs/reference/manifest.md is its contract.

Fields that the server does not read are marked Unread. The other fields have defaults for manifests of older exporters.
"""

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tpuserve_formats.manifest import FORMAT_VERSION
from tpuserve_formats.manifest.device import ManifestDevice
from tpuserve_formats.manifest.part import Part, Unread
from tpuserve_formats.manifest.tensor import ManifestTensor

# JSON cannot represent infinity, so the manifest contains null.
_Tolerance = Annotated[float, BeforeValidator(lambda limit: math.inf if limit is None else limit), Field(ge=0)]


class ManifestSignature(Part):
    """One signature, its buckets, and whether a batch may combine its rows with those of other requests."""

    inputs: dict[str, ManifestTensor] = Field(default_factory=dict)
    outputs: dict[str, ManifestTensor] = Field(default_factory=dict)
    batch_sizes: tuple[int, ...] = ()
    rows_independent: bool = False
    deterministic: bool = Field(default=True, exclude_if=lambda value: value)
    sequence_buckets: tuple[int, ...] = Field(default=(), exclude_if=lambda buckets: not buckets)


# One value and several values of each kind. A later exporter may write others.
_ORIGINS = {
    "parameters": ("value as trained", "values as trained"),
    "average": ("moving average", "moving averages"),
    "vocabulary": ("vocabulary", "vocabularies"),
    "statistics": ("adapted statistic", "adapted statistics"),
    "initializer": ("initial value of the builder", "initial values of the builder"),
    "copied": ("copied value", "copied values"),
    "live": ("value of the live model", "values of the live model"),
}


class ManifestOrigin(Part):
    """The number of values of one origin. `part` is the source's name for the part that holds them, or empty."""

    kind: str
    part: str = Field(default="", exclude_if=lambda value: not value)
    detail: str = Field(default="", exclude_if=lambda value: not value)
    count: int

    def __str__(self) -> str:
        place = f", from {self.part}" if self.part else ""
        detail = f" ({self.detail})" if self.detail else ""
        one, several = _ORIGINS.get(self.kind, (self.kind, self.kind))
        return f"{self.count} {one if self.count == 1 else several}{place}{detail}"


class ManifestSource(Part):
    """The exported model."""

    kind: str
    name: str
    step: int | None = None
    builder: str | None = None
    provenance: Annotated[tuple[ManifestOrigin, ...], Unread] = Field(default=(), exclude_if=lambda value: not value)


class ManifestCpu(Part):
    """Permissions of the CPU fallback."""

    allow_bfloat16_kernels: bool = False


class ManifestOutputParity(Part):
    """Differences of one output. `top1_agreement` is None for outputs other than class scores."""

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
        """Return the comparisons with the largest difference of that output."""
        return max(self.buckets, key=lambda bucket: bucket.outputs[output].max_abs_difference or 0.0)


class ManifestParity(Part):
    """Differences from the source model's outputs, and their tolerance."""

    max_abs_difference: Annotated[float, Unread] = 0.0
    atol: _Tolerance = math.inf
    rtol: _Tolerance = math.inf
    rows: Annotated[int, Unread] = 0
    signatures: Annotated[dict[str, ManifestSignatureParity], Unread] = Field(default_factory=dict)


class ManifestFreezing(Part):
    """Operations that the export folded and computed, and the number of dropped operations of each kind."""

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
    """Number of layers with 8-bit weights, and the bytes of all variables before and after."""

    mode: Literal["int8"] = "int8"
    layers: int
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        sizes = f"{self.bytes_before / 1e6:.3g} MB of weights became {self.bytes_after / 1e6:.3g} MB"
        return f"{self.layers} layer(s) in {self.mode}, {sizes}"


class ManifestMetric(Part):
    """One metric of the version on labelled rows, and the bound that it met. `value` is None if it is not finite.

    `labels` is their name in the file. `note` is a choice that the outputs led to, such as a threshold.
    """

    metric: str
    signature: str
    output: str
    labels: str
    value: float | None
    operator: str
    bound: float
    met: bool = True
    note: str = Field(default="", exclude_if=lambda note: not note)

    @property
    def expected(self) -> str:
        return f"{self.operator} {self.bound:g}"

    @property
    def shown(self) -> str:
        """Six digits of the value."""
        return "not finite" if self.value is None else f"{self.value:.6g}"

    def describe(self, evaluation: "ManifestEvaluation") -> str:
        """Return `0.982222 over 450 row(s) of held_out.npz, expected >= 0.97 (output …, labels …)`."""
        note = f", {self.note}" if self.note else ""
        return (
            f"{self.shown} over {evaluation.rows:,} row(s) of {evaluation.file}, expected {self.expected} (output "
            f"{self.output!r} of {self.signature}, labels {self.labels!r}{note})"
        )


class ManifestEvaluation(Part):
    """The metrics of the written version on the rows of a labelled file."""

    file: str
    sha256: str
    rows: int
    metrics: tuple[ManifestMetric, ...]


class ManifestFile(Part):
    """One file of the version."""

    sha256: str
    size_bytes: int = Field(ge=0)


class Manifest(Part):
    """The whole manifest in format version 1."""

    format_version: Literal[1] = FORMAT_VERSION
    exporter_version: str
    created_at: str
    source: ManifestSource
    compute_dtype: str
    cpu: ManifestCpu
    signatures: dict[str, ManifestSignature]
    parity: ManifestParity
    evaluation: ManifestEvaluation | None = Field(default=None, exclude_if=lambda value: value is None)
    quantized: ManifestQuantized | None = Field(default=None, exclude_if=lambda value: value is None)
    frozen: ManifestFreezing | None = Field(default=None, exclude_if=lambda value: value is None)
    allowed_ops: Annotated[tuple[str, ...], Unread] = Field(default=(), exclude_if=lambda names: not names)
    fingerprint: str | None = Field(default=None, exclude_if=lambda value: value is None)
    labels: str | None = Field(default=None, exclude_if=lambda value: value is None)
    device: ManifestDevice | None = Field(default=None, exclude_if=lambda value: value is None)
    files: dict[str, ManifestFile]
