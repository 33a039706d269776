"""Image files with known pixels, and the model's inputs for them, prepared without TensorFlow.

The preparation is independent of the version's. A comparison that used the same code could not find its errors.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuserve_exporter.options.signature_request import ImageScale
from tpuserve_exporter.terms.signature import Array

_SEED = 20
# PNG's colour types, by channels.
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_BYTES = 256


@dataclass(frozen=True, slots=True)
class RawImages:
    """Images in the size of the model's input `name`, so that the signature does not resize them.

    `layout` is the order of the input's dimensions, such as `NHWC`.
    """

    name: str
    layout: str
    height: int
    width: int
    channels: int
    dtype: np.dtype[Any]
    values: ImageScale

    def draw(self, rows: int) -> Array:
        """Draw random pixels, uint8 [rows, height, width, channels]."""
        shape = (rows, self.height, self.width, self.channels)
        return np.random.default_rng(_SEED).integers(0, _BYTES, shape).astype(np.uint8)

    def prepare(self, pixels: Array) -> Array:
        """Compute the model's input for the pixels, in its layout and dtype."""
        ordered = pixels[..., ::-1] if self.values.bgr else pixels
        scaled = ordered.astype(np.float64) * self.values.scale
        prepared = (scaled - np.array(self.values.mean)) / np.array(self.values.std)
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            prepared = np.clip(np.rint(prepared), limits.min, limits.max)
        arranged = {"NHW": prepared[..., 0], "NCHW": np.moveaxis(prepared, -1, 1)}.get(self.layout, prepared)
        typed: Array = arranged.astype(self.dtype)
        return typed


def encode_png(pixels: Array) -> bytes:
    """Encode uint8 [height, width, channels] as a PNG file."""
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
