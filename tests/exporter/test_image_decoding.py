"""Tests that image files of every kind are decoded for every number of channels or rejected with a reason."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpuserve_exporter.signatures.image_decoding import decode_image
from tpuserve_exporter.signatures.raw_images import encode_png

pytestmark = [pytest.mark.xdist_group(__name__)]

COLOUR, GREY, ALPHA = (200, 100, 50), 120, 128
# COLOUR in grey, according to Pillow.
COLOUR_AS_GREY = 124

Decode = Callable[[bytes, int], np.ndarray]


@pytest.fixture(scope="module")
def decode() -> Decode:
    """Return a function that decodes one pixel's channels in a graph, like the served signature."""
    graphs = {
        channels: tf.function(
            lambda files, channels=channels: tf.map_fn(
                lambda file: decode_image(file, channels),
                files,
                fn_output_signature=tf.TensorSpec([None, None, channels], tf.uint8),
            )
        )
        for channels in (1, 3, 4)
    }
    return lambda content, channels: graphs[channels](tf.constant([content]))[0, 0, 0].numpy()


def image(mode: str) -> Image.Image:
    grey = mode in ("L", "1", "I;16")
    plain = Image.new("L", (8, 6), GREY) if grey else Image.new("RGB", (8, 6), COLOUR)
    if mode == "I;16":
        return Image.fromarray(np.full((6, 8), GREY * 257, np.uint16))
    if mode == "RGBA":
        plain.putalpha(ALPHA)
    return plain.convert(mode)


def encode(picture: Image.Image, kind: str, **options: Any) -> bytes:  # noqa: ANN401 - Pillow's
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def moving(kind: str) -> bytes:
    return encode(image("RGB"), kind, save_all=True, append_images=[Image.new("RGB", (8, 6))], lossless=True)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(
    ("content", "is_grey", "alpha"),
    [
        (encode(image("RGB"), "JPEG", quality=100), False, 255),
        (encode(image("L"), "JPEG", quality=100), True, 255),
        (encode(image("CMYK"), "JPEG", quality=100), False, 255),
        (encode(image("RGB"), "PNG"), False, 255),
        (encode(image("RGBA"), "PNG"), False, ALPHA),
        (encode(image("L"), "PNG"), True, 255),
        (encode(image("I;16"), "PNG"), True, 255),
        (encode(image("RGB"), "GIF"), False, 255),
        (moving("GIF"), False, 255),
        (encode(image("RGB"), "BMP"), False, 255),
        (encode(image("L"), "BMP"), True, 255),
        (encode(image("RGB"), "WEBP", lossless=True), False, 255),
        (encode(image("RGBA"), "WEBP", lossless=True), False, ALPHA),
    ],
    ids=[
        "jpeg", "grey jpeg", "cmyk jpeg", "png", "png with alpha", "grey png", "png of 16 bits", "gif", "moving gif",
        "bmp", "grey bmp", "webp", "webp with alpha",
    ],
)  # fmt: skip
def test_a_file_is_decoded_for_any_channels(
    decode: Decode, content: bytes, is_grey: bool, alpha: int, channels: int
) -> None:
    colours = [GREY] * 3 if is_grey else list(COLOUR)
    expected = {1: [GREY if is_grey else COLOUR_AS_GREY], 3: colours, 4: [*colours, alpha]}[channels]
    np.testing.assert_allclose(decode(content, channels), expected, atol=1)


def noise(kind: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    return encode(Image.fromarray(pixels), kind)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Input is empty"),
        (b"GI", "Unknown image file format"),
        (b"no image at all", "Unknown image file format"),
        (encode(image("RGB"), "TIFF"), "Unknown image file format"),
        (noise("JPEG")[:900], "Invalid JPEG data"),
        (noise("PNG")[:900], "Invalid PNG data"),
        (noise("WEBP")[:900], "Failed to decode WebP image"),
        (moving("WEBP"), "animated WebP is not supported: send one image"),
    ],
    ids=["empty", "two bytes", "text", "tiff", "cut jpeg", "cut png", "cut webp", "moving webp"],
)
def test_a_file_that_cannot_be_decoded_is_refused(decode: Decode, content: bytes, message: str, channels: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        decode(content, channels)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_raw_images_are_png_files_of_their_pixels(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    with Image.open(io.BytesIO(encode_png(pixels))) as read:
        np.testing.assert_array_equal(np.asarray(read).reshape(pixels.shape), pixels)
