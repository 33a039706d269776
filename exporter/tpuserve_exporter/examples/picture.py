"""Formats inputs for a report: images as data URIs, text as text, other arrays as short lists of numbers."""

import base64

import numpy as np

from tpuserve_exporter.examples.prediction import describe_array
from tpuserve_exporter.signature import Array, Tensors
from tpuserve_exporter.signatures.image_decoding import decode_image

# Pixels on the longer side of an image: the limit in a report, and the limit of lossless compression.
_LARGEST, _LOSSLESS = 160, 64
_MOST_TEXT = 400
_LEAST_SIDE = 4
_CHANNELS = (1, 3, 4)


def show_inputs(inputs: Tensors) -> dict[str, str]:
    """Format one row of inputs: the first image as a data URI, `image`, and the other inputs as `text`."""
    shown = [_show_one(np.asarray(value)) for value in inputs.values()]
    image = next((uri for uri, _ in shown if uri), "")
    texts = [
        f"{name}: {text}" if len(shown) > 1 else text for name, (_, text) in zip(inputs, shown, strict=True) if text
    ]
    return ({"image": image} if image else {}) | ({"text": "\n".join(texts)} if texts else {})


def _show_one(value: Array) -> tuple[str, str]:
    """Return an image as a data URI, or else a text."""
    if value.dtype == object and value.size == 1:
        content = value.reshape(-1)[0]
        return _show_bytes(content if isinstance(content, bytes) else str(content).encode())
    row = value[0] if value.ndim and len(value) == 1 else value
    pixels = _as_pixels(row)
    return ("", describe_array(value)) if pixels is None else (_encode(pixels), "")


def _show_bytes(content: bytes) -> tuple[str, str]:
    """Format an image file as an image, UTF-8 as text, and other bytes by their number."""
    import tensorflow as tf

    try:
        return _encode(decode_image(tf.constant(content), 3).numpy()), ""
    except tf.errors.OpError:
        pass
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "", f"{len(content)} bytes"
    return "", text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def _as_pixels(row: Array) -> Array | None:
    """Convert numbers with the shape of an image to uint8 [height, width, channels]. Return None for others."""
    if row.dtype.kind not in "uif" or row.ndim not in (2, 3) or min(row.shape[-2:] if row.ndim == 2 else row.shape) < 1:
        return None
    if row.ndim == 2:
        row = row[..., np.newaxis]
        if row.shape[0] != row.shape[1]:  # more likely a sequence of vectors
            return None
    elif row.shape[2] not in _CHANNELS:
        row = np.moveaxis(row, 0, -1)
    if row.shape[2] not in _CHANNELS or min(row.shape[:2]) < _LEAST_SIDE or not np.isfinite(row).all():
        return None
    return row if row.dtype == np.uint8 else _to_bytes(row.astype(np.float64))


def _to_bytes(row: Array) -> Array:
    """Scale values of 0..1, -1..1 or 0..255 to bytes, and stretch values of any other range."""
    low, high = float(row.min()), float(row.max())
    known = [(0, 1), (-1, 1), (0, 255)]
    start, end = next((one for one in known if one[0] <= low and high <= one[1]), (low, high))
    # Halves, because the difference of two finite numbers may be infinite.
    half = end / 2 - start / 2
    return np.rint((row / 2 - start / 2) / (half or 1.0) * 255).astype(np.uint8)


def _encode(pixels: Array) -> str:
    """Return a data URI: PNG if the image is small or has alpha, else JPEG."""
    import tensorflow as tf

    side = max(pixels.shape[:2])
    if side > _LARGEST:
        size = [max(1, length * _LARGEST // side) for length in pixels.shape[:2]]
        pixels = np.rint(tf.image.resize(pixels, size, "area").numpy()).astype(np.uint8)
    if side <= _LOSSLESS or pixels.shape[2] == 4:
        return _uri("png", tf.io.encode_png(pixels).numpy())
    return _uri("jpeg", tf.io.encode_jpeg(pixels, quality=85).numpy())


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
