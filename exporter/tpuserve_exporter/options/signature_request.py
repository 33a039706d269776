"""One --signature: its name, kind and options, and the pixel values of an image signature."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tpuserve_exporter.errors import OptionConflict


@dataclass(frozen=True, slots=True)
class ImageScale:
    """A preparation of pixels: `(byte * scale - mean) / std`, in the order blue, green, red if `bgr`."""

    described: str
    scale: float
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    bgr: bool = False


# keras.applications calls the last three the modes tf, torch and caffe.
IMAGE_SCALES: Mapping[str, ImageScale] = {
    "none": ImageScale("0 to 255, as decoded", 1.0),
    "0..1": ImageScale("byte / 255", 1 / 255),
    "-1..1": ImageScale("byte / 127.5 - 1", 1 / 127.5, (1.0,)),
    "torch": ImageScale(
        "byte / 255, minus ImageNet's mean, over its deviation", 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ),
    "caffe": ImageScale("BGR, minus ImageNet's mean", 1.0, (103.939, 116.779, 123.68), bgr=True),
}


def describe_scales() -> str:
    """Return `none (0 to 255, as decoded), 0..1 (byte / 255), …`."""
    return ", ".join(f"{name} ({one.described})" for name, one in IMAGE_SCALES.items())


IMAGE_OPTIONS = ("input", "size", "crop", "resize", "scale", "mean", "std", "order")
# The options that determine an ImageScale.
VALUE_OPTIONS = ("scale", "mean", "std", "order")
# Image files have sides of at most five digits.
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The options that the text alone determines. None stands for a value that the model determines.

    `size` is (height, width) in pixels. `crop` is the fraction of the largest central window with the model's
    proportions, along each side. `values` is None if the text has no option for pixel values.
    """

    input: str | None
    size: tuple[int, int] | None
    crop: float | None
    resize: str
    values: ImageScale | None

    @classmethod
    def read(cls, options: Mapping[str, str], signature: str) -> "ImageOptions":
        """Read the options of `signature`, which messages name. Raises OptionConflict for impossible values."""
        resize = options.get("resize", "bilinear")
        if resize not in _METHODS:
            raise OptionConflict(f"{signature}: resize={resize} is not one of {', '.join(_METHODS)}")
        crop = _read_one(options, "crop", signature)
        if crop is not None and not 0 < crop <= 1:
            raise OptionConflict(
                f"{signature}: crop is the fraction of the image to keep, above 0 and at most 1, such as crop=0.875"
            )
        return cls(options.get("input"), _read_size(options, signature), crop, resize, _read_values(options, signature))


def _read_values(options: Mapping[str, str], signature: str) -> ImageScale | None:
    """Read a name such as scale=torch, or numbers. A mean is subtracted from scaled values, so it needs a scale."""
    present = [name for name in VALUE_OPTIONS if name in options]
    named = IMAGE_SCALES.get(options.get("scale", ""))
    if named is not None:
        if present != ["scale"]:
            raise OptionConflict(
                f"{signature}: scale={options['scale']} also sets the mean, the standard deviation and the channel "
                f"order. Omit {present[1]}="
            )
        return named
    scale = _read_one(options, "scale", signature)
    mean = _read_numbers(options, "mean", signature) or (0.0,)
    std = _read_numbers(options, "std", signature) or (1.0,)
    if 0.0 in std:
        raise OptionConflict(f"{signature}: std is a divisor and cannot be 0")
    if scale == 0.0:
        raise OptionConflict(f"{signature}: scale=0 makes all images equal. Use scale=1 to leave the pixels unchanged")
    if (order := options.get("order", "rgb")) not in ("rgb", "bgr"):
        raise OptionConflict(f"{signature}: order={order} is neither rgb nor bgr")
    if not present:
        return None
    if scale is None:
        raise OptionConflict(
            f"{signature}: {present[0]}= needs scale=, which is applied first. Use scale=1/255 if the mean is within "
            "0..1 (such as 0.485), or scale=1 if it is within 0..255 (such as 123.68)"
        )
    return ImageScale("as given", scale, mean, std, bgr=order == "bgr")


def _read_size(options: Mapping[str, str], signature: str) -> tuple[int, int] | None:
    if "size" not in options:
        return None
    sides = _SIZE.fullmatch(options["size"])
    if sides is None:
        raise OptionConflict(
            f"{signature}: size={options['size']} is not of the form HEIGHTxWIDTH, such as size=224x224"
        )
    return int(sides[1]), int(sides[2])


def _read_one(options: Mapping[str, str], name: str, signature: str) -> float | None:
    numbers = _read_numbers(options, name, signature)
    if len(numbers) > 1:
        raise OptionConflict(f"{signature}: {name}={options[name]} has {len(numbers)} numbers, but takes one")
    return numbers[0] if numbers else None


def _read_numbers(options: Mapping[str, str], name: str, signature: str) -> tuple[float, ...]:
    """Read numbers or fractions such as 1/255, separated by colons. Return () if the option is missing."""
    if name not in options:
        return ()
    text = options[name]
    try:
        return tuple(_read_number(part) for part in text.split(":"))
    except (ValueError, ZeroDivisionError) as error:
        names = f" nor one of {', '.join(IMAGE_SCALES)}" if name == "scale" else ""
        raise OptionConflict(f"{signature}: {name}={text} is not a number{names}") from error


def _read_number(text: str) -> float:
    """Read a number or fraction. Raises ValueError, also for NaN and infinity, and ZeroDivisionError."""
    above, slash, below = text.partition("/")
    number = float(above) / float(below) if slash else float(above)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


DEFAULT_SIGNATURE = "serving_default"
TENSOR_KIND = "tensor"
IMAGE_KIND = "image_bytes"
# The options of each kind. A user's function takes its own arguments as options.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    TENSOR_KIND: (),
    IMAGE_KIND: IMAGE_OPTIONS,
    "tf_example": (),
    "classify": ("scores",),
    "regress": ("value",),
}
KINDS = tuple(_OPTIONS)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class SignatureRequest:
    """One requested signature. `kind` is one of KINDS, or `pkg.module:function`."""

    name: str
    kind: str = TENSOR_KIND
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "SignatureRequest":
        """Parse `photo=image_bytes,scale=1,size=224x224`. Raises OptionConflict for errors in the text itself."""
        name, equals, rest = text.partition("=")
        kind, *pairs = (part.strip() for part in rest.split(","))
        if not equals or not kind or _NAME.fullmatch(name) is None:
            raise OptionConflict(f"--signature {text!r} is not of the form NAME=KIND[,OPTION=VALUE...]")
        if kind not in KINDS and ":" not in kind:
            raise OptionConflict(
                f"--signature {text!r}: the kind is unknown. Kinds are {', '.join(KINDS)} and pkg.module:function"
            )
        options: dict[str, str] = {}
        for pair in pairs:
            option, equals, value = pair.partition("=")
            if not option or not equals or option in options:
                what = "is repeated" if option in options else "is not of the form OPTION=VALUE"
                raise OptionConflict(f"--signature {text!r}: {pair!r} {what}")
            options[option] = value
        request = cls(name, kind, options)
        request._check_options()
        return request

    def _check_options(self) -> None:
        known = _OPTIONS.get(self.kind, tuple(self.options))
        for option in self.options:
            if option not in known:
                has = ", ".join(known) or "none"
                raise OptionConflict(f"{self}: there is no option {option!r}. Options of {self.kind}: {has}")
        if self.kind == IMAGE_KIND:
            ImageOptions.read(self.options, str(self))

    def __str__(self) -> str:
        return f"--signature {self.name}={self.kind}"


def check_names(requests: "tuple[SignatureRequest, ...]") -> None:
    """Raise OptionConflict for two signatures with the same name."""
    names = [request.name for request in requests]
    for name in names:
        if names.count(name) > 1:
            raise OptionConflict(f"--signature {name}=… occurs {names.count(name)} times. Use each name once")


def scale_images(requests: "tuple[SignatureRequest, ...]", scale: str | None) -> "tuple[SignatureRequest, ...]":
    """Apply --image-scale to image signatures without options for pixel values.

    Raises OptionConflict if there is no such signature.
    """
    if scale is None:
        return requests
    open_requests = [one for one in requests if one.kind == IMAGE_KIND and not set(VALUE_OPTIONS) & one.options.keys()]
    if not open_requests:
        raise OptionConflict("--image-scale needs an image signature without scale=. Add --signature NAME=image_bytes")
    return tuple(
        replace(one, options={**one.options, "scale": scale}) if one in open_requests else one for one in requests
    )
