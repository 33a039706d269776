"""An image file as the model's only input: its size, channels, dtype and value range."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_client.dtypes import STRING, Array, describe
from tpuserve_client.errors import FailedPrecondition, InvalidArgument
from tpuserve_client.model import Signature, TensorSpec

if TYPE_CHECKING:
    from PIL import Image

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Same names as the exporter's --image-scale. Maps to (scale, shift): value = byte * scale - shift.
SCALES: Mapping[str, tuple[float, float]] = {"none": (1.0, 0.0), "0..1": (1 / 255, 0.0), "-1..1": (1 / 127.5, 1.0)}
_DEEP_MODES = ("I", "I;16", "I;16B", "I;16L")
_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Position of the image axes in an input's shape.

    `channels_axis` is None for a grayscale input without that axis. `height` and `width` are None if the input takes
    any size.
    """

    height: int | None
    width: int | None
    channels: int
    channels_axis: int | None
    has_batch: bool


def image_layout(spec: TensorSpec) -> ImageLayout:
    """Return the layout of [N,H,W,C], [N,C,H,W], [N,H,W], [H,W,C] or [H,W].

    Three dimensions are [H,W,C] if the last is 1, 3 or 4 and the first is fixed. Unknown channels are RGB. Raises
    InvalidArgument for any other shape.
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
    raise InvalidArgument(f"Input {spec} does not have the shape of an image. Send an array (.npy, .npz or JSON).")


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Inputs made from an image. `description` describes the conversion for the user."""

    inputs: dict[str, Array]
    description: str


def image_input(content: bytes, signature: Signature, scale: str | None) -> ImageInput:
    """Convert an encoded image to the signature's only input, a batch of one if the input takes batches.

    A string input gets the file unchanged. `scale` is a key of SCALES; without it, integers are sent as 0 to 255. A
    floating-point input needs `scale`, because metadata does not contain the value range of the training data. Raises
    InvalidArgument for several inputs, or for an input that takes no image.
    """
    name, spec = only_input(signature, "An image")
    if spec.dtype == STRING and scale is not None:
        raise InvalidArgument(f"Input {spec} accepts encoded image files. Omit --scale.")
    if spec.dtype == STRING:
        return ImageInput({name: string_input(content, spec)}, f"sent unchanged, {len(content)} bytes")
    layout = image_layout(spec)
    pixels, description = _pixels(content, layout)
    chosen_scale = scale or _default_scale(spec)
    return ImageInput(
        {name: _as_dtype(_arranged(pixels, layout), spec, chosen_scale)},
        f"{description}; pixel values: {_describe(chosen_scale)}",
    )


def only_input(signature: Signature, what: str) -> tuple[str, TensorSpec]:
    """Return the signature's only input. Raises InvalidArgument if it has several."""
    if len(signature.inputs) != 1:
        raise InvalidArgument(f"{what} is a single input, but the model has {sorted(signature.inputs)}.")
    return next(iter(signature.inputs.items()))


def string_input(content: bytes, spec: TensorSpec) -> Array:
    """Return an array with the content as its only element, of the input's rank."""
    encoded = np.empty((), STRING)
    encoded[()] = content
    return encoded.reshape([1] * len(spec.shape or ()))


def _default_scale(spec: TensorSpec) -> str:
    if spec.dtype is not None and spec.dtype.kind in "iub":
        return "none"
    raise InvalidArgument(
        f"Input {spec} is floating point, and the metadata has no range of pixel values. Add --scale none "
        "(0..255), --scale 0..1 or --scale -1..1, or select a signature that accepts image files with --signature."
    )


def _describe(scale: str) -> str:
    return "0..255, as decoded" if scale == "none" else scale


def _pixels(content: bytes, layout: ImageLayout) -> tuple[Array, str]:
    """Decode to uint8 [H, W] or [H, W, C], upright, in the layout's size and channels. Also describe the conversion."""
    try:
        from PIL import Image, ImageOps  # optional: most users send arrays
    except ImportError:
        raise FailedPrecondition("Images require Pillow: pip install 'tpuserve-client[image]'") from None
    try:
        with Image.open(io.BytesIO(content)) as file:
            turned = " turned upright," if file.getexif().get(_ORIENTATION, 1) != 1 else ""
            upright = ImageOps.exif_transpose(file)
            image = _shallow(upright).convert(_MODES[layout.channels])
    # Pillow raises SyntaxError for a PNG file with a broken chunk.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidArgument(f"Cannot read the image: {error}") from None
    size = (layout.width or image.width, layout.height or image.height)
    description = f"{image.mode} {image.width}x{image.height},{turned} sent as {size[0]}x{size[1]}"
    return np.asarray(image if image.size == size else image.resize(size, Image.Resampling.BILINEAR)), description


def _shallow(image: "Image.Image") -> "Image.Image":
    """Reduce 16 bits per channel to 8. Pillow's own conversion clips at 255."""
    if image.mode not in _DEEP_MODES:
        return image
    return image.point(lambda value: value / 257).convert("L")


def _arranged(pixels: Array, layout: ImageLayout) -> Array:
    if layout.channels_axis is not None and pixels.ndim == 2:
        pixels = pixels[..., np.newaxis]
    if layout.channels_axis == 1:
        pixels = pixels.transpose(2, 0, 1)
    return pixels[np.newaxis] if layout.has_batch else pixels


def _as_dtype(pixels: Array, spec: TensorSpec, scale: str) -> Array:
    if spec.dtype is None or spec.dtype.kind in "bc" or spec.dtype == np.int8:
        raise InvalidArgument(f"Input {spec} cannot represent the values of an image ({describe(spec.dtype)}).")
    factor, shift = SCALES[scale]
    if spec.dtype.kind in "iu" and scale != "none":
        raise InvalidArgument(f"Input {spec} is an integer input, but --scale {scale} is for floating point.")
    return (pixels.astype(np.float32) * np.float32(factor) - np.float32(shift)).astype(spec.dtype)
