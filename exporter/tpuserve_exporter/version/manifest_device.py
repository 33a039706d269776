"""The manifest's `device`: programs for a TPU, what they take and return, and how signatures reach them."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.signatures.served_signature import PREDICT


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceTensor(_Part):
    """`shape` is the model's: None is a dimension that buckets give a size. `pad_value` fills sequences up, else 0."""

    dtype: str
    shape: tuple[int | None, ...]
    pad_value: PadValue | None = Field(default=None, exclude_if=lambda value: value is None)

    @property
    def free_axes(self) -> tuple[int, ...]:
        """Dimensions that are free, that of the rows left out."""
        return tuple(axis for axis, size in enumerate(self.shape) if axis > 0 and size is None)


class DeviceProgram(_Part):
    """`batch_size` None is a model without rows, `sequence_length` None one without sequences."""

    batch_size: int | None
    sequence_length: int | None
    file: str


class DevicePartEntry(_Part):
    """Programs take `inputs` and then `weights`, in these orders, and return `outputs`."""

    inputs: dict[str, DeviceTensor]
    weights: tuple[str, ...]
    outputs: dict[str, DeviceTensor]
    compute_dtype: str
    programs: tuple[DeviceProgram, ...]


def describe_sizes(programs: Iterable[tuple[int | None, int | None]]) -> str:
    """Of batch size and length of each: `4 for batches of 1, 8, lengths of 64, 128`."""
    listed = list(programs)
    by_kind = (("batches", {rows for rows, _ in listed}), ("lengths", {length for _, length in listed}))
    sizes = [
        f"{kind} of {', '.join(map(str, sorted(known)))}"
        for kind, found in by_kind
        if (known := [one for one in found if one is not None])
    ]
    return f"{len(listed)} for {', '.join(sizes)}" if sizes else str(len(listed))


class DeviceHost(_Part):
    """Signatures of the SavedModel `model`, to run before and after the device part; None where there is nothing."""

    model: str
    before: str | None
    after: str | None


class DeviceSignature(_Part):
    """`inputs` and `outputs` by the signature's names, to the part's: where no host part stands between.

    `method_name` is the SavedModel's.
    """

    part: str
    inputs: dict[str, str] = Field(default_factory=dict)
    outputs: dict[str, str] = Field(default_factory=dict)
    host: DeviceHost | None = None
    method_name: str = PREDICT


class DeviceNumerics(_Part):
    """What an emulation of a TPU's products found, by signature, in the form of the manifest's own parity."""

    emulated: Literal["products of bfloat16"] = "products of bfloat16"
    signatures: dict[str, dict[str, Any]]


class ManifestDevice(_Part):
    """Format version 1. `preflight`, `preflight_together` and `numerics` are for people."""

    format_version: Literal[1] = 1
    lowered_with: dict[str, str]
    calling_convention_version: int
    weights: str
    shard: tuple[dict[str, Any], ...] = ()
    parts: dict[str, DevicePartEntry]
    signatures: dict[str, DeviceSignature]
    preflight: tuple[dict[str, Any], ...] = ()
    preflight_together: tuple[dict[str, Any], ...] = Field(default=(), exclude_if=lambda value: not value)
    numerics: DeviceNumerics | None = Field(default=None, exclude_if=lambda value: value is None)

    def is_part(self, signature: str) -> bool:
        """Whether the signature is its part and nothing else: no host part, and all that the part gives."""
        one = self.signatures[signature]
        return one.host is None and set(one.outputs.values()) == self.parts[one.part].outputs.keys()
