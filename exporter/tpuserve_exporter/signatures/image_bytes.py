"""`image_bytes` signatures: JPEG, PNG, BMP, GIF or WebP files, decoded, resized and normalized on the host.

The user chooses the pixel values, or else the model's own arithmetic shows them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.signature_request import (
    IMAGE_SCALES,
    ImageOptions,
    ImageScale,
    SignatureRequest,
    describe_scales,
)
from tpuserve_exporter.signatures.image_decoding import decode_image
from tpuserve_exporter.signatures.leading import LeadingArithmetic, find_leading
from tpuserve_exporter.signatures.raw_images import RawImages
from tpuserve_exporter.signatures.served_signature import Call, DevicePart, ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf

# TensorFlow Serving's REST API takes base64 for inputs whose names end in `_bytes`.
INPUT = "image_bytes"
_CHANNELS = (1, 3, 4)
# The most images to decode at once. The executor's threads are the effective limit.
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class _Pixels:
    """The model's image input: rows of `height`, `width` and `channels` in the order of `layout`.

    `crop` is the fraction of the largest central window to take (`_crop`), or None for the whole image.
    """

    name: str
    spec: "tf.TensorSpec"
    layout: str
    height: int
    width: int
    channels: int
    crop: float | None
    method: str
    values: ImageScale

    @property
    def raw_images(self) -> RawImages:
        dtype = np.dtype(self.spec.dtype.as_numpy_dtype)
        return RawImages(self.name, self.layout, self.height, self.width, self.channels, dtype, self.values)


def serve(request: SignatureRequest, device: DevicePart) -> ServedSignature:
    """Serve a signature with image files for one input, named `image_bytes`. Other inputs stay unchanged.

    Raises OptionConflict if no input takes images, if the options do not fit the input, or if the pixel values are
    unknown.
    """
    pixels, choice = _fit(request, device)

    def wrap(call: Call) -> ServedFunction:
        return ServedFunction(_input_specs(device, pixels.name), lambda **inputs: call(**_decode(inputs, pixels)), [])

    # A crop also resizes, and the exact pixel values after a resize are unknown.
    raw_images = pixels.raw_images if pixels.crop in (None, 1) else None
    return ServedSignature(
        request.name, request.kind, wrap, raw_images=raw_images, note=choice.note, warning=choice.warning
    )


def _input_specs(device: DevicePart, image: str) -> "dict[str, tf.TensorSpec]":
    import tensorflow as tf

    others = {name: spec for name, spec in device.inputs.items() if name != image}
    return {INPUT: tf.TensorSpec([None], tf.string, name=INPUT), **others}


def _decode(inputs: "Mapping[str, tf.Tensor]", pixels: _Pixels) -> "dict[str, tf.Tensor]":
    """Compute the device part's inputs, always on the CPU, because accelerators have no image decoder."""
    import tensorflow as tf

    with tf.device("/device:CPU:0"):
        decoded = tf.map_fn(
            lambda image: _decode_one(image, pixels),
            inputs[INPUT],
            parallel_iterations=_AT_ONCE,
            fn_output_signature=tf.TensorSpec([pixels.height, pixels.width, pixels.channels], tf.float32),
        )
        ordered = tf.reverse(decoded, [-1]) if pixels.values.bgr else decoded
        scaled = ordered * pixels.values.scale
        normalised = (scaled - tf.constant(pixels.values.mean)) / tf.constant(pixels.values.std)
        arranged = _arrange(normalised, pixels.layout)
        values = tf.round(arranged) if pixels.spec.dtype.is_integer else arranged
        image = tf.saturate_cast(values, pixels.spec.dtype)
    return {pixels.name: image, **{name: value for name, value in inputs.items() if name != INPUT}}


def _decode_one(image: "tf.Tensor", pixels: _Pixels) -> "tf.Tensor":
    """Decode one file to float32 [height, width, channels], 0 to 255."""
    import tensorflow as tf

    decoded = decode_image(image, pixels.channels)
    taken = decoded if pixels.crop is None else _crop(decoded, pixels.crop, pixels.height, pixels.width)
    resized = tf.image.resize(taken, [pixels.height, pixels.width], pixels.method)
    return tf.cast(resized, tf.float32)


def _crop(image: "tf.Tensor", part: float, height: int, width: int) -> "tf.Tensor":
    """Crop to the central `part` of the largest central window with the proportions of `height` and `width`."""
    import tensorflow as tf

    size = tf.shape(image)[:2]
    scale = part * tf.reduce_min(tf.cast(size, tf.float64) / [height, width])
    window = tf.maximum(tf.cast(tf.round(scale * [height, width]), tf.int32), 1)
    top, left = tf.unstack((size - window) // 2)
    return image[top : top + window[0], left : left + window[1]]


def _arrange(image: "tf.Tensor", layout: str) -> "tf.Tensor":
    import tensorflow as tf

    if layout == "NHW":
        return image[..., 0]
    return tf.transpose(image, [0, 3, 1, 2]) if layout == "NCHW" else image


def _fit(request: SignatureRequest, device: DevicePart) -> "tuple[_Pixels, ScaleChoice]":
    options = ImageOptions.read(request.options, str(request))
    name = _find_input(request, options.input, device)
    spec = device.inputs[name]
    layout, dims = _find_layout(request, name, spec)
    height, width = _find_size(request, options.size, name, dims)
    channels = dims.get("C", 1)
    assert channels is not None
    if options.values is not None:
        _check_channels(request, options.values, channels)
    choice = choose_scale(request, options.values, spec, lambda: find_leading(device.graph, list(device.inputs), name))
    pixels = _Pixels(name, spec, layout, height, width, channels, options.crop, options.resize, choice.values)
    return pixels, choice


def _find_input(request: SignatureRequest, named: str | None, device: DevicePart) -> str:
    """Return the input named by the option, or else the only input that fits an image. Raises OptionConflict."""
    described = ", ".join(f"{name}: {_text(spec)}" for name, spec in device.inputs.items())
    if named is not None and named not in device.inputs:
        raise OptionConflict(f"{request}: the model has no input {named!r}. Its inputs are {described}")
    fitting = [name for name, spec in device.inputs.items() if named in (None, name) and _layout(spec) is not None]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise OptionConflict(f"{request}: several inputs fit images: {', '.join(fitting)}. Choose one with input=NAME")
    raise OptionConflict(
        f"{request}: no input of the model fits an image. Images need numbers of shape [batch, height, width, 1, 3 "
        f"or 4], [batch, 1 or 3, height, width], or [batch, height, width]. The model takes {described}"
    )


def _layout(spec: "tf.TensorSpec") -> str | None:
    """Return the order of the dimensions, detected from the channels, or None if an image does not fit the input."""
    dims = spec.shape.as_list() if spec.shape.rank is not None else []
    if spec.dtype.is_bool or not (spec.dtype.is_integer or spec.dtype.is_floating) or not dims or dims[0] is not None:
        return None
    if len(dims) == 3:
        return "NHW"
    if len(dims) == 4:
        return "NHWC" if dims[3] in _CHANNELS else "NCHW" if dims[1] in _CHANNELS else None
    return None


def _find_layout(request: SignatureRequest, name: str, spec: "tf.TensorSpec") -> tuple[str, dict[str, int | None]]:
    layout = _layout(spec)
    assert layout is not None, f"{request}: _find_input returns inputs that images fit, {name} is none"
    return layout, dict(zip(layout, spec.shape.as_list(), strict=True))


def _find_size(
    request: SignatureRequest, chosen: tuple[int, int] | None, name: str, dims: Mapping[str, int | None]
) -> tuple[int, int]:
    """Return height and width from the model, or from size=HEIGHTxWIDTH if the model leaves them free.

    Raises OptionConflict.
    """
    sizes = []
    for axis, wanted in zip("HW", chosen or (None, None), strict=True):
        own = dims[axis]
        if own is not None and wanted not in (None, own):
            raise OptionConflict(
                f"{request}: size={request.options['size']} differs from the model's input {name!r}, which is "
                f"{dims['H']}x{dims['W']}"
            )
        sizes.append(own or wanted)
    if sizes[0] is None or sizes[1] is None:
        raise OptionConflict(f"{request}: the model's input {name!r} has no fixed size. Set it with size=HEIGHTxWIDTH")
    return sizes[0], sizes[1]


def _check_channels(request: SignatureRequest, values: ImageScale, channels: int) -> None:
    """Raise OptionConflict unless each option has one number, or one for each channel."""
    for option, numbers in (("mean", values.mean), ("std", values.std)):
        if len(numbers) in (1, channels):
            continue
        wanted = "one number" if channels == 1 else f"one number, or {channels} separated by colons"
        if option in request.options:
            numbers_text = f"{option}={request.options[option]} has {len(numbers)} numbers"
            raise OptionConflict(f"{request}: {numbers_text}, but takes {wanted}")
        raise OptionConflict(
            f"{request}: the {option} of scale={request.options['scale']} has {len(numbers)} channels, but the model "
            f"takes {channels}. Set scale=, mean= and std= to numbers"
        )
    if values.bgr and channels != 3:
        raise OptionConflict(f"{request}: order=bgr needs 3 channels, but the model takes {channels}")


def _text(spec: "tf.TensorSpec") -> str:
    dims: list[Any] = spec.shape.as_list() if spec.shape.rank is not None else ["..."]
    return f"{spec.dtype.name}[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


_BYTES = IMAGE_SCALES["none"]
# The smallest useful range of values for a model that normalizes 0 to 255 itself. Closer values look almost equal.
_LEAST_RANGE = 16.0


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """The chosen values. `note` states a choice of the exporter, `warning` a likely mistake of the user."""

    values: ImageScale
    note: str = ""
    warning: str = ""


def choose_scale(
    request: SignatureRequest,
    chosen: ImageScale | None,
    spec: "tf.TensorSpec",
    find_leading: Callable[[], LeadingArithmetic],
) -> ScaleChoice:
    """Choose the values for the input `spec`. `find_leading` reads the model's graph.

    Raises OptionConflict if neither the user nor the model determines them.
    """
    if chosen is not None:
        _check_integers(request, chosen, spec)
        return ScaleChoice(chosen, warning=_doubt(request, chosen, find_leading()))
    if spec.dtype.is_integer:
        _check_integers(request, _BYTES, spec)
        return ScaleChoice(
            _BYTES, note=f"{request.name} takes pixels as 0..255, because its input is {spec.dtype.name}"
        )
    leading = find_leading()
    if leading.is_for_bytes:
        return ScaleChoice(
            _BYTES, note=f"{request.name} takes pixels as 0..255, because the model begins with {leading}"
        )
    raise OptionConflict(
        f"{request}: {_explain(leading)} which pixel values it was trained with. Add --image-scale with one "
        f"of {describe_scales()}"
    )


def _explain(leading: LeadingArithmetic) -> str:
    if leading.is_for_units:
        return f"the model begins with {leading}, which suggests 0..1 but does not prove"
    if str(leading):
        return f"the model begins with {leading}, which does not show"
    return "the model does not show"


def _doubt(request: SignatureRequest, chosen: ImageScale, leading: LeadingArithmetic) -> str:
    """Return the reason why the given values are likely wrong, or an empty text."""
    low, high = _ends(chosen)
    if not leading.is_for_bytes or high - low >= _LEAST_RANGE:
        return ""
    return (
        f"{request.name} feeds pixels as {low:.3g}..{high:.3g}, but the model itself begins with {leading}, which "
        "expects 0..255. The images are probably scaled twice. Use --image-scale none"
    )


def _ends(values: ImageScale) -> tuple[float, float]:
    """Return the smallest and the largest value of black and white over all channels."""
    ends = [(value * values.scale - mean) / std for value in (0, 255) for mean in values.mean for std in values.std]
    return min(ends), max(ends)


def _check_integers(request: SignatureRequest, values: ImageScale, spec: "tf.TensorSpec") -> None:
    """Raise OptionConflict if the input's integers cannot hold the values, or round most of them away."""
    low, high = _ends(values)
    if not spec.dtype.is_integer or (spec.dtype.min <= low and high <= spec.dtype.max and high - low >= _LEAST_RANGE):
        return
    raise OptionConflict(
        f"{request}: pixels as {low:.3g}..{high:.3g} do not fit the input's "
        f"{spec.dtype.name} ({spec.dtype.min}..{spec.dtype.max}). Set other values, such as scale=1,mean=128 for "
        "-128..127"
    )
