"""The device memory of arrays in the compiler's layouts. Runs only in a compile_worker process."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Sharding


def argument_bytes(compiled: Any, avals: Sequence[Any], shardings: "Sequence[Sharding]") -> list[int]:  # noqa: ANN401 - jax's have no types
    """Return the bytes of each argument's shard on one device, in its layout, including padding.

    The compiler removes unused arguments. They have no layout, so their sizes exclude padding.
    """
    formats, _ = compiled.input_formats
    return [
        _padded_bytes(sharding.shard_shape(aval.shape), aval.dtype.itemsize, None if one is None else one.layout)
        for aval, sharding, one in zip(avals, shardings, formats, strict=True)
    ]


def _padded_bytes(shape: Sequence[int], itemsize: int, layout: Any) -> int:  # noqa: ANN401 - jax's Layout has no types
    """Return the bytes of an array in a layout. The first tiling pads the last dimensions of `major_to_minor`.

    Further tilings subdivide the first tiles and add no padding.
    """
    if layout is None or layout.tiling is None or not layout.tiling:
        return int(math.prod(shape) * itemsize)
    tile = layout.tiling[0]
    ordered = [shape[axis] for axis in layout.major_to_minor]
    # Scalars have tiles, too.
    ordered = [1] * (len(tile) - len(ordered)) + ordered
    untiled = len(ordered) - len(tile)
    tiled = [-(-size // side) * side for size, side in zip(ordered[untiled:], tile, strict=True)]
    return int(math.prod((*ordered[:untiled], *tiled)) * itemsize)
