"""Inputs and outputs in a manifest, for signatures and for device parts."""

from typing import Annotated

from pydantic import Field

from tpuserve_formats.manifest.part import PadValue, Part, Unread


class ManifestTensor(Part):
    """One input or output of a signature. A None in `shape` is a free dimension; `shape` None is an unknown rank.

    `tried_sizes` has the least and the greatest size that the exporter ran for each free dimension of an input, and
    None for fixed ones. It is empty for outputs, for fixed shapes, and for unknown ranks.
    """

    dtype: str
    shape: tuple[int | None, ...] | None
    pad_value: PadValue | None = Field(default=None, exclude_if=lambda value: value is None)
    tried_sizes: tuple[tuple[int, int] | None, ...] = Field(default=(), exclude_if=lambda sizes: not sizes)
    row_splits: Annotated[tuple[str, ...], Unread] = Field(default=(), exclude_if=lambda names: not names)


class DeviceTensor(ManifestTensor):
    """A tensor of a device part. A None in `shape` is a dimension that buckets fix. `pad_value` pads sequences, default
    0.
    """

    shape: tuple[int | None, ...]

    @property
    def free_axes(self) -> tuple[int, ...]:
        """Indices of the free dimensions, except the row dimension."""
        return tuple(axis for axis, size in enumerate(self.shape) if axis > 0 and size is None)

    @property
    def has_rows(self) -> bool:
        """Whether the first dimension is the row dimension."""
        return bool(self.shape) and self.shape[0] is None
