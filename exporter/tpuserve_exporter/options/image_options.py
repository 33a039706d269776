"""The options of an image signature: `size=224x224,scale=1/255,mean=0.485:0.456:0.406`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.image_scale import IMAGE_SCALES, ImageScale

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
