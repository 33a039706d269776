"""Common preparations of pixel values by name, for `--image-scale` and for `scale=` of a signature."""

from collections.abc import Mapping
from dataclasses import dataclass


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
