"""How much of a device's memory an array takes, as the compiler lays it out. Runs in compile_worker's process alone."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Sharding


def argument_bytes(compiled: Any, avals: Sequence[Any], shardings: "Sequence[Sharding]") -> list[int]:  # noqa: ANN401 - jax's have no types
    """Of one device, for each argument of an executable: its part of the array, in its layout, padding included.

    An argument that was left out, as nothing reads it, has no layout, and is counted without padding.
    """
    formats, _ = compiled.input_formats
    return [
        _padded_bytes(sharding.shard_shape(aval.shape), aval.dtype.itemsize, None if one is None else one.layout)
        for aval, sharding, one in zip(avals, shardings, formats, strict=True)
    ]


def _padded_bytes(shape: Sequence[int], itemsize: int, layout: Any) -> int:  # noqa: ANN401 - jax's Layout has no types
    """Tiles cover the fastest dimensions, the last of `major_to_minor`; a further tiling is within the first one's."""
    if layout is None or layout.tiling is None or not layout.tiling:
        return int(math.prod(shape) * itemsize)
    tile = layout.tiling[0]
    ordered = [shape[axis] for axis in layout.major_to_minor]
    # A scalar has a tile, too.
    ordered = [1] * (len(tile) - len(ordered)) + ordered
    whole = len(ordered) - len(tile)
    tiled = [-(-size // side) * side for size, side in zip(ordered[whole:], tile, strict=True)]
    return int(math.prod((*ordered[:whole], *tiled)) * itemsize)
