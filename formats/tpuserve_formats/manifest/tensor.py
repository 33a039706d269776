"""Inputs and outputs in a manifest: of signatures, and of the parts that run on a device."""

from typing import Annotated

from pydantic import Field

from tpuserve_formats.manifest.part import PadValue, Part, Unread


class ManifestTensor(Part):
    """One input or output of a signature. A None in `shape` is a free dimension, and None an unknown rank."""

    dtype: str
    shape: tuple[int | None, ...] | None
    pad_value: PadValue | None = Field(default=None, exclude_if=lambda value: value is None)
    row_splits: Annotated[tuple[str, ...], Unread] = Field(default=(), exclude_if=lambda names: not names)


class DeviceTensor(ManifestTensor):
    """`shape` is the model's: None is a dimension that buckets give a size. `pad_value` fills sequences up, else 0."""

    shape: tuple[int | None, ...]

    @property
    def free_axes(self) -> tuple[int, ...]:
        """Dimensions that are free, that of the rows left out."""
        return tuple(axis for axis, size in enumerate(self.shape) if axis > 0 and size is None)

    @property
    def has_rows(self) -> bool:
        """Whether the first dimension is that of the rows."""
        return bool(self.shape) and self.shape[0] is None
