"""Synthetic images of clothing with noise: shirts, trousers, bags and shoes of many cuts. Downloads nothing."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

SIDE = 28
KINDS = ("shirt", "trousers", "bag", "shoe")

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


class Clothing(NamedTuple):
    """`images` float32 [count, 28, 28, 1] from 0 to 1; `labels` int64 [count], indices of KINDS."""

    images: Floats
    labels: Integers


def make(count: int, seed: int) -> Clothing:
    """Return `count` images, with every kind equally often. The same seed gives the same images."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % len(KINDS))
    images = np.stack([_draw(int(label), random) for label in labels])
    return Clothing(images[..., None].astype(np.float32), labels.astype(np.int64))


def _draw(label: int, random: np.random.Generator) -> Floats:
    rows, columns = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    dy, dx = random.uniform(-2, 2, 2)
    shape = (_shirt, _trousers, _bag, _shoe)[label](rows - dy, columns - SIDE / 2 - dx, random)
    cloth = random.uniform(0.45, 1.0) + 0.1 * np.sin(rows * random.uniform(0.3, 2.0))
    noisy: Floats = np.clip(np.where(shape, cloth, 0.0) + random.normal(0, 0.12, (SIDE, SIDE)), 0, 1)
    return noisy


def _shirt(y: Floats, x: Floats, random: np.random.Generator) -> Mask:
    """Draw a body, and sleeves at its upper part."""
    width, sleeve = random.uniform(4, 6), random.uniform(8, 17)
    body = (np.abs(x) < width) & (y > 5) & (y < 24)
    sleeves = (np.abs(x) < width + 5) & (np.abs(x) > width - 1) & (y > 5 + 0.3 * np.abs(x)) & (y < sleeve)
    neck = (np.abs(x) < 2) & (y < 7)
    return (body | sleeves) & ~neck


def _trousers(y: Floats, x: Floats, random: np.random.Generator) -> Mask:
    """Draw two legs, separate below the hips."""
    width, hips = random.uniform(4, 6), random.uniform(8, 11)
    gap = np.where(y > hips, 0.12 * (y - hips) + 0.6, 0.0)
    return (np.abs(x) < width + 0.1 * y) & (np.abs(x) >= gap) & (y > 3) & (y < 26)


def _bag(y: Floats, x: Floats, random: np.random.Generator) -> Mask:
    """Draw a box below a handle."""
    width, top = random.uniform(7, 11), random.uniform(11, 14)
    box = (np.abs(x) < width) & (y > top) & (y < 24)
    distance = np.hypot(x / random.uniform(0.8, 1.1), y - top)
    bag: Mask = box | ((distance < 7) & (distance > 5) & (y <= top))
    return bag


def _shoe(y: Floats, x: Floats, random: np.random.Generator) -> Mask:
    """Draw a sole with a low toe on one side and an ankle on the other."""
    toe, ankle = random.uniform(15, 18), random.uniform(6, 11)
    upper = np.where(x < random.uniform(-1, 3), toe, ankle)
    return (np.abs(x) < 11) & (y > upper) & (y < 22)
