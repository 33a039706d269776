"""Images that a graph can decode: TensorFlow's decoders read PNG and JPEG whatever they are called."""

import numpy as np

_HEIGHT, _WIDTH = 37, 49
_SEED = 20


def make_image(variant: int) -> bytes:
    """An RGB image of a smooth pattern, another one for each `variant`: PNG and JPEG in turns.

    All are of one size, for graphs that do not resize; smooth, because noise would be averaged to one grey.
    """
    import tensorflow as tf

    random = np.random.default_rng((_SEED, variant))
    across, down = np.meshgrid(np.linspace(0, 2 * np.pi, _WIDTH), np.linspace(0, 2 * np.pi, _HEIGHT))
    waves = random.uniform(0.2, 2, (3, 2))
    shades = [np.sin(across * wide + down * high + random.uniform(0, 6)) for wide, high in waves]
    image = np.rint(127.5 + 127.5 * np.stack(shades, axis=-1)).astype(np.uint8)
    encode = tf.io.encode_jpeg if variant % 2 else tf.io.encode_png
    return bytes(encode(image).numpy())
