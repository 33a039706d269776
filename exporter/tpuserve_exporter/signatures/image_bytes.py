"""`image_bytes`: JPEG, PNG, BMP or GIF files in, decoded, resized and normalised on the host."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.signatures.device_part import Call, DevicePart
from tpuserve_exporter.signatures.served_signature import ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf

# TensorFlow Serving's REST gateway takes base64 for inputs whose names end like this.
INPUT = "image_bytes"
_OPTIONS = ("input", "size", "crop", "resize", "scale", "mean", "std")
_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
_CHANNELS = (1, 3, 4)
# Images decoded at the same time; the executor's threads are the real bound.
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class _Pixels:
    """What the model's image input takes: rows of `height`, `width` and `channels`, in the order of `layout`.

    A value is `(byte * scale - mean) / std`. `crop` is how much of the image is taken, of its middle; None for all.
    """

    name: str
    spec: "tf.TensorSpec"
    layout: str
    height: int
    width: int
    channels: int
    crop: float | None
    method: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def serve(request: SignatureRequest, device: DevicePart) -> ServedSignature:
    """One input of the model takes images, and is called `image_bytes`; the others stay as they are.

    Raises OptionConflict where no input takes images, or the options do not fit the one that does.
    """
    request.check_options(*_OPTIONS)
    pixels = _read_options(request, device)

    def wrap(call: Call) -> ServedFunction:
        return ServedFunction(_input_specs(device, pixels.name), lambda **inputs: call(**_decode(inputs, pixels)), [])

    return ServedSignature(request.name, request.kind, wrap)


def _input_specs(device: DevicePart, image: str) -> "dict[str, tf.TensorSpec]":
    import tensorflow as tf

    others = {name: spec for name, spec in device.inputs.items() if name != image}
    return {INPUT: tf.TensorSpec([None], tf.string, name=INPUT), **others}


def _decode(inputs: "Mapping[str, tf.Tensor]", pixels: _Pixels) -> "dict[str, tf.Tensor]":
    """The device part's inputs. On the CPU wherever the graph runs: no accelerator has a decoder."""
    import tensorflow as tf

    with tf.device("/device:CPU:0"):
        decoded = tf.map_fn(
            lambda image: _decode_one(image, pixels),
            inputs[INPUT],
            parallel_iterations=_AT_ONCE,
            fn_output_signature=tf.TensorSpec([pixels.height, pixels.width, pixels.channels], tf.float32),
        )
        normalised = (decoded * pixels.scale - tf.constant(pixels.mean)) / tf.constant(pixels.std)
        arranged = _arrange(normalised, pixels.layout)
        values = tf.round(arranged) if pixels.spec.dtype.is_integer else arranged
        image = tf.saturate_cast(values, pixels.spec.dtype)
    return {pixels.name: image, **{name: value for name, value in inputs.items() if name != INPUT}}


def _decode_one(image: "tf.Tensor", pixels: _Pixels) -> "tf.Tensor":
    """One file as float32 [height, width, channels], 0 to 255; of a moving GIF the first picture."""
    import tensorflow as tf

    decoded = tf.io.decode_image(image, channels=pixels.channels, expand_animations=False)
    decoded.set_shape([None, None, pixels.channels])
    taken = decoded if pixels.crop is None else _crop(decoded, pixels.crop, pixels.height, pixels.width)
    resized = tf.image.resize(taken, [pixels.height, pixels.width], pixels.method)
    return tf.cast(resized, tf.float32)


def _crop(image: "tf.Tensor", part: float, height: int, width: int) -> "tf.Tensor":
    """Of the largest window in the middle with the proportions of `height` and `width`, its middle `part`."""
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


def _read_options(request: SignatureRequest, device: DevicePart) -> _Pixels:
    name = _find_input(request, device)
    spec = device.inputs[name]
    layout, dims = _find_layout(request, name, spec)
    height, width = _find_size(request, name, dims)
    channels = dims.get("C", 1)
    assert channels is not None
    method = request.options.get("resize", "bilinear")
    if method not in _METHODS:
        raise OptionConflict(f"{request}: resize={method} is none of {', '.join(_METHODS)}")
    scale = _read_numbers(request, "scale", 1, 1 if spec.dtype.is_integer else 1 / 255)[0]
    mean, std = _read_numbers(request, "mean", channels, 0.0), _read_numbers(request, "std", channels, 1.0)
    if 0.0 in std:
        raise OptionConflict(f"{request}: std is divided by, and cannot be 0")
    return _Pixels(name, spec, layout, height, width, channels, _read_crop(request), method, scale, mean, std)


def _find_input(request: SignatureRequest, device: DevicePart) -> str:
    """The input named by the option, else the only one that an image fits."""
    named = request.options.get("input")
    described = ", ".join(f"{name}: {_text(spec)}" for name, spec in device.inputs.items())
    if named is not None and named not in device.inputs:
        raise OptionConflict(f"{request}: the model has no input {named!r}; it takes {described}")
    fitting = [name for name, spec in device.inputs.items() if named in (None, name) and _layout(spec) is not None]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise OptionConflict(f"{request}: images fit the inputs {', '.join(fitting)}: say which, input=NAME")
    raise OptionConflict(
        f"{request}: an image is numbers of [batch, height, width, 1, 3 or 4], or [batch, 1 or 3, height, width], or "
        f"[batch, height, width]; the model takes {described}"
    )


def _layout(spec: "tf.TensorSpec") -> str | None:
    """Which dimension is which, told from the channels; None for what no image fits."""
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


def _find_size(request: SignatureRequest, name: str, dims: Mapping[str, int | None]) -> tuple[int, int]:
    """Height and width: the model's own, or those of size=HEIGHTxWIDTH where the model leaves them free."""
    given = request.options.get("size")
    said: tuple[int | None, int | None] = (None, None)
    if given is not None:
        height, _, width = given.partition("x")
        if not height.isdecimal() or not width.isdecimal() or 0 in (int(height), int(width)):
            raise OptionConflict(f"{request}: size={given} is not HEIGHTxWIDTH, such as size=224x224")
        said = int(height), int(width)
    sizes = []
    for axis, wanted in zip("HW", said, strict=True):
        own = dims[axis]
        if own is not None and wanted not in (None, own):
            raise OptionConflict(f"{request}: size={given}, the model's input {name!r} is {dims['H']}x{dims['W']}")
        sizes.append(own or wanted)
    if sizes[0] is None or sizes[1] is None:
        raise OptionConflict(f"{request}: the model's input {name!r} has no size: give one, size=HEIGHTxWIDTH")
    return sizes[0], sizes[1]


def _read_crop(request: SignatureRequest) -> float | None:
    if "crop" not in request.options:
        return None
    (part,) = _read_numbers(request, "crop", 1, 1.0)
    if not 0 < part <= 1:
        raise OptionConflict(f"{request}: crop is the part of the image to take, above 0 and at most 1, as crop=0.875")
    return part


def _read_numbers(request: SignatureRequest, option: str, count: int, default: float) -> tuple[float, ...]:
    """One number, or `count` of them with colons between; fractions are read, too: 1/255."""
    if option not in request.options:
        return (default,)
    text = request.options[option]
    try:
        numbers = tuple(_read_number(part) for part in text.split(":"))
    except (ValueError, ZeroDivisionError) as error:
        raise OptionConflict(f"{request}: {option}={text} is no number") from error
    if len(numbers) not in (1, count):
        wanted = "one number" if count == 1 else f"one number, or {count} with colons between"
        raise OptionConflict(f"{request}: {option}={text} gives {len(numbers)} numbers; it takes {wanted}")
    return numbers


def _read_number(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def _text(spec: "tf.TensorSpec") -> str:
    dims: list[Any] = spec.shape.as_list() if spec.shape.rank is not None else ["..."]
    return f"{spec.dtype.name}[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"
