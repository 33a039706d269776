"""Photographs to classify, read with Pillow and NumPy, without TensorFlow."""

import io

import numpy as np
from PIL import Image


def draw(count, height, width, seed):
    """Return smooth uint8 images [count, height, width, 3] with different brightness, contrast and colours."""
    generator = np.random.default_rng(seed)
    pictures = []
    for _ in range(count):
        coarse = generator.uniform(0, 255, (5, 5, 3)) * generator.uniform(0.3, 1) + generator.uniform(0, 60)
        image = Image.fromarray(coarse.clip(0, 255).astype(np.uint8))
        pictures.append(np.asarray(image.resize((width, height), Image.Resampling.BICUBIC)))
    return np.stack(pictures)


def draw_mosaics(count, height, width, seed):
    """Return uint8 images of flat squares of 8 x 8, which every JPEG decoder decodes identically.

    Decoders round differently, so that pixels of other images differ by a few units.
    """
    down, across = -(-height // 8), -(-width // 8)
    coarse = np.random.default_rng(seed).uniform(0, 255, (count, down, across, 3))
    return coarse.repeat(8, 1).repeat(8, 2)[:, :height, :width].astype(np.uint8)


def encode(pictures, kind, **options):
    """Return the bytes of the files as an array of objects."""
    files = np.empty(len(pictures), object)
    for index, picture in enumerate(pictures):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, kind, **options)
        files[index] = file.getvalue()
    return files


def read(files, height, width):
    """Return float32 [count, height, width, 3], 0 to 255, decoded by Pillow, resized bilinearly, not antialiased."""
    return np.stack([_resize(np.asarray(Image.open(io.BytesIO(file)).convert("RGB")), height, width) for file in files])


def _resize(picture, height, width):
    """Resize bilinearly with half-pixel centres, as documented for tf.image.resize(picture, [height, width])."""
    picture = picture.astype(np.float32)
    for axis, size in ((0, height), (1, width)):
        before = picture.shape[axis]
        if before == size:
            continue
        place = (np.arange(size) + 0.5) * before / size - 0.5
        below = np.floor(place)
        share = (place - below).astype(np.float32).reshape([-1 if one == axis else 1 for one in range(3)])
        first = picture.take(below.clip(0, before - 1).astype(int), axis)
        second = picture.take((below + 1).clip(0, before - 1).astype(int), axis)
        picture = first * (1 - share) + second * share
    return picture
