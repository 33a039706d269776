"""The manifest's `device`: programs for a TPU, their inputs and outputs, and the signatures that use them."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tpuserve_formats.manifest.part import Part, Unread
from tpuserve_formats.manifest.tensor import DeviceTensor

_PREDICT = "tensorflow/serving/predict"
# A manifest may contain null instead of an empty object.
_Names = Annotated[dict[str, str], BeforeValidator(lambda names: {} if names is None else names)]


class DeviceProgram(Part):
    """One compiled program. All free dimensions of its part have these sizes, or None if the part has none of that
    kind.
    """

    batch_size: int | None = Field(default=None, ge=1)
    sequence_length: int | None = Field(default=None, ge=1)
    file: str

    def shape_of(self, tensor: DeviceTensor) -> tuple[int, ...]:
        """Return the shape of an input in this program, with 0 for a dimension whose size the program omits."""
        return tuple(
            size if size is not None else (self.sequence_length if axis else self.batch_size) or 0
            for axis, size in enumerate(tensor.shape)
        )


class DevicePartEntry(Part):
    """A device part of the model. Its programs take `inputs` and then `weights`, in order, and return `outputs`."""

    inputs: dict[str, DeviceTensor]
    weights: tuple[str, ...] = ()
    outputs: dict[str, DeviceTensor]
    compute_dtype: Annotated[str, Unread] = ""
    programs: tuple[DeviceProgram, ...] = Field(min_length=1)


def describe_sizes(programs: Iterable[tuple[int | None, int | None]]) -> str:
    """Describe programs by pairs of batch size and sequence length: `4 for batches of 1, 8, lengths of 64, 128`."""
    listed = list(programs)
    by_kind = (("batches", {rows for rows, _ in listed}), ("lengths", {length for _, length in listed}))
    sizes = [
        f"{kind} of {', '.join(map(str, sorted(known)))}"
        for kind, found in by_kind
        if (known := [one for one in found if one is not None])
    ]
    return f"{len(listed)} for {', '.join(sizes)}" if sizes else str(len(listed))


class DeviceHost(Part):
    """Signatures of the SavedModel `model` that run before and after the device part. None: no such signature."""

    model: str
    before: str | None = None
    after: str | None = None


class DeviceSignature(Part):
    """Maps a signature's `inputs` and `outputs` to those of its part, except where a host part is between them.

    `method_name` is the SavedModel's.
    """

    part: str
    inputs: _Names = Field(default_factory=dict)
    outputs: _Names = Field(default_factory=dict)
    host: DeviceHost | None = None
    method_name: str = _PREDICT


class DeviceShardRule(Part):
    """Splits weights whose name matches `pattern` along the mesh's `axes`, one per dimension. None: not split."""

    pattern: str
    axes: tuple[str | None, ...]


class DeviceNumerics(Part):
    """Differences found by an emulation of a TPU's products, by signature, in the format of `parity`."""

    emulated: Literal["products of bfloat16"] = "products of bfloat16"
    signatures: dict[str, dict[str, Any]]


class ManifestDevice(Part):
    """The device section. `preflight`, `preflight_together` and `numerics` are reports for people."""

    format_version: int
    lowered_with: dict[str, str] = Field(default_factory=dict)
    calling_convention_version: int
    weights: str
    shard: tuple[DeviceShardRule, ...] = ()
    parts: dict[str, DevicePartEntry]
    signatures: dict[str, DeviceSignature]
    preflight: Annotated[tuple[dict[str, Any], ...], Unread] = ()
    preflight_together: Annotated[tuple[dict[str, Any], ...], Unread] = Field(
        default=(), exclude_if=lambda value: not value
    )
    numerics: Annotated[DeviceNumerics | None, Unread] = Field(default=None, exclude_if=lambda value: value is None)

    def is_part(self, signature: str) -> bool:
        """Return whether the signature is exactly its part: it has no host part and returns all outputs of the part."""
        one = self.signatures[signature]
        return one.host is None and set(one.outputs.values()) == self.parts[one.part].outputs.keys()
