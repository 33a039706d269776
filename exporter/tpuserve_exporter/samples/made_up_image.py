"""Made-up images that a graph can decode. Each of TensorFlow's image decoders reads both PNG and JPEG."""

import numpy as np

_HEIGHT, _WIDTH = 37, 49
_SEED = 20


def make_image(variant: int) -> bytes:
    """Make an RGB image with a smooth pattern that depends on `variant`: PNG if it is even, or JPEG if it is odd.

    All images have one size, for graphs that do not resize. A resize would average a noisy pattern to uniform grey.
    """
    import tensorflow as tf

    random = np.random.default_rng((_SEED, variant))
    across, down = np.meshgrid(np.linspace(0, 2 * np.pi, _WIDTH), np.linspace(0, 2 * np.pi, _HEIGHT))
    waves = random.uniform(0.2, 2, (3, 2))
    shades = [np.sin(across * wide + down * high + random.uniform(0, 6)) for wide, high in waves]
    image = np.rint(127.5 + 127.5 * np.stack(shades, axis=-1)).astype(np.uint8)
    encode = tf.io.encode_jpeg if variant % 2 else tf.io.encode_png
    return bytes(encode(image).numpy())
