"""An image file as the model's only input: its size, channels, dtype and value range."""

import io
from dataclasses import dataclass

import numpy as np

from tpuserve_client.dtypes import STRING, Array, describe
from tpuserve_client.errors import FailedPrecondition, InvalidArgument
from tpuserve_client.model import Signature, TensorSpec

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where an input of some shape keeps an image. `channels_axis` is None for a grayscale without that axis.

    `height` and `width` are None where the input takes any.
    """

    height: int | None
    width: int | None
    channels: int
    channels_axis: int | None
    has_batch: bool


def image_layout(spec: TensorSpec) -> ImageLayout:
    """The layout of [N,H,W,C], [N,C,H,W], [N,H,W], [H,W,C] or [H,W]; InvalidArgument for any other shape.

    Three dimensions are [H,W,C] if the last is 1, 3 or 4 and the first is fixed. Unknown channels are RGB.
    """
    match spec.shape:
        case (_, int(channels), height, width) if channels in _MODES and width not in _MODES:
            return ImageLayout(height, width, channels, 1, has_batch=True)
        case (_, height, width, channels) if channels in (None, *_MODES):
            return ImageLayout(height, width, channels or 3, -1, has_batch=True)
        case (int(height), width, int(channels)) if channels in _MODES:
            return ImageLayout(height, width, channels, -1, has_batch=False)
        case (_, height, width):
            return ImageLayout(height, width, 1, None, has_batch=True)
        case (int(height), width):
            return ImageLayout(height, width, 1, None, has_batch=False)
    raise InvalidArgument(f"Input {spec} has no shape for an image; send an array (.npy, .npz or JSON).")


def image_input(content: bytes, signature: Signature, *, scale: bool) -> dict[str, Array]:
    """An encoded image as the signature's only input, a batch of one where it takes batches.

    A string input gets the file as it is. Floating point is scaled to 0..1 if `scale`. InvalidArgument if the
    signature has several inputs, or one that is no image.
    """
    if len(signature.inputs) != 1:
        raise InvalidArgument(f"An image is one input, and the model has {sorted(signature.inputs)}.")
    ((name, spec),) = signature.inputs.items()
    if spec.dtype == STRING:
        encoded = np.empty((), STRING)
        encoded[()] = content
        return {name: encoded.reshape([1] * len(spec.shape or ()))}
    layout = image_layout(spec)
    return {name: _as_dtype(_arranged(_pixels(content, layout), layout), spec, scale)}


def _pixels(content: bytes, layout: ImageLayout) -> Array:
    """uint8 [H, W] or [H, W, C], upright, in the layout's size and channels."""
    try:
        from PIL import Image, ImageOps  # an extra: most who predict send arrays
    except ImportError:
        raise FailedPrecondition("Reading images needs pillow: pip install 'tpuserve-client[image]'") from None
    try:
        with Image.open(io.BytesIO(content)) as file:
            image = ImageOps.exif_transpose(file).convert(_MODES[layout.channels])
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidArgument(f"The image cannot be read: {error}") from None
    size = (layout.width or image.width, layout.height or image.height)
    return np.asarray(image if image.size == size else image.resize(size))


def _arranged(pixels: Array, layout: ImageLayout) -> Array:
    if layout.channels_axis is not None and pixels.ndim == 2:
        pixels = pixels[..., np.newaxis]
    if layout.channels_axis == 1:
        pixels = pixels.transpose(2, 0, 1)
    return pixels[np.newaxis] if layout.has_batch else pixels


def _as_dtype(pixels: Array, spec: TensorSpec, scale: bool) -> Array:
    if spec.dtype is None or spec.dtype.kind in "bc" or spec.dtype == np.int8:
        raise InvalidArgument(f"Input {spec} cannot hold an image's values ({describe(spec.dtype)}).")
    if scale and spec.dtype.kind not in "iu":
        return (pixels.astype(np.float32) / 255).astype(spec.dtype)
    return pixels.astype(spec.dtype)
