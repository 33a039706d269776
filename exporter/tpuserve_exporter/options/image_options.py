"""What a signature of images says of them: `size=224x224,scale=1/255,mean=0.485:0.456:0.406`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_exporter.errors import OptionConflict

IMAGE_OPTIONS = ("input", "size", "crop", "resize", "scale", "mean", "std")
_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """As far as the text alone tells; None for what the model says, or has a say in.

    `size` is height and width, `crop` the part of an image that is taken, of its middle. `mean` and `std` are one
    number, or one for each channel.
    """

    input: str | None
    size: tuple[int, int] | None
    crop: float | None
    resize: str
    scale: float | None
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def read(cls, options: Mapping[str, str], signature: str) -> "ImageOptions":
        """From the options of `signature`, which messages name. Raises OptionConflict for values that cannot be."""
        resize = options.get("resize", "bilinear")
        if resize not in _METHODS:
            raise OptionConflict(f"{signature}: resize={resize} is none of {', '.join(_METHODS)}")
        crop, scale = (_read_one(options, name, signature) for name in ("crop", "scale"))
        if crop is not None and not 0 < crop <= 1:
            raise OptionConflict(
                f"{signature}: crop is the part of the image to take, above 0 and at most 1, as crop=0.875"
            )
        mean = _read_numbers(options, "mean", signature) or (0.0,)
        std = _read_numbers(options, "std", signature) or (1.0,)
        if 0.0 in std:
            raise OptionConflict(f"{signature}: std is divided by, and cannot be 0")
        return cls(options.get("input"), _read_size(options, signature), crop, resize, scale, mean, std)


def _read_size(options: Mapping[str, str], signature: str) -> tuple[int, int] | None:
    if "size" not in options:
        return None
    height, _, width = options["size"].partition("x")
    if not height.isdecimal() or not width.isdecimal() or 0 in (int(height), int(width)):
        raise OptionConflict(f"{signature}: size={options['size']} is not HEIGHTxWIDTH, such as size=224x224")
    return int(height), int(width)


def _read_one(options: Mapping[str, str], name: str, signature: str) -> float | None:
    numbers = _read_numbers(options, name, signature)
    if len(numbers) > 1:
        raise OptionConflict(f"{signature}: {name}={options[name]} gives {len(numbers)} numbers; it takes one number")
    return numbers[0] if numbers else None


def _read_numbers(options: Mapping[str, str], name: str, signature: str) -> tuple[float, ...]:
    """Those with colons between, fractions among them (1/255); none where the option is not given."""
    if name not in options:
        return ()
    text = options[name]
    try:
        return tuple(_read_number(part) for part in text.split(":"))
    except (ValueError, ZeroDivisionError) as error:
        raise OptionConflict(f"{signature}: {name}={text} is no number") from error


def _read_number(text: str) -> float:
    """Raises ValueError, for NaN and infinity too, and ZeroDivisionError."""
    above, slash, below = text.partition("/")
    number = float(above) / float(below) if slash else float(above)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
