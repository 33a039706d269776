"""Tests that the command rejects damaged images with a message."""

import io

import numpy as np
import pytest
from PIL import Image

from tpuserve_client.cli.image import image_input
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import Signature, TensorSpec

SIGNATURE = Signature("serving_default", {"x": TensorSpec("x", np.dtype(np.float32), (None, 8, 8, 3))}, {})


def test_a_png_file_with_a_broken_chunk_is_refused() -> None:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    content = bytearray(file.getvalue())
    second = content.index(b"IDAT", content.index(b"IDAT") + 4)
    content[second] = 1
    with pytest.raises(InvalidArgument, match="Cannot read the image: broken PNG file"):
        image_input(bytes(content), SIGNATURE, "0..1")
