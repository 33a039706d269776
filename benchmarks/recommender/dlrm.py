"""Shape, weights, requests and expected scores of the recommender: DLRM-DCNv2 as in MLPerf, with numpy alone.

Thirteen numbers go through the bottom MLP. Each of 26 lists of ids becomes the sum of its rows in a table. The low-rank
cross network and the top MLP turn the 27 vectors into a score. MLPerf's tables for Criteo have up to 40 million rows;
here they have at most `Shape.most_rows`, so that they fit into the memory of a small machine.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = dict[str, Array]

DENSE: Final = "dense"
SCORE: Final = "score"
DENSE_FEATURES: Final = 13
# Rows of MLPerf's tables, and the ids of an item in each: `multi_hot_sizes` of training's reference.
_ROWS: Final = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
HOTNESS: Final = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
TABLES: Final = tuple(f"cat_{number}" for number in range(len(HOTNESS)))


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. The bottom MLP ends with the width of a table's row, the top MLP with one unit."""

    most_rows: int
    bottom: tuple[int, ...]
    cross_layers: int
    cross_rank: int
    top: tuple[int, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each table."""
        return tuple(min(rows, self.most_rows) for rows in _ROWS)

    @property
    def width(self) -> int:
        """Floats in a row of each table."""
        return self.bottom[-1]

    @property
    def crossed(self) -> int:
        """Floats that the cross network reads and writes."""
        return self.width * (1 + len(TABLES))


# The layers of MLPerf's model, and a small model of the same form for tests.
SHAPES: Final = {
    "mlperf": Shape(40_000, (512, 256, 128), 3, 512, (1024, 1024, 512, 256, 1)),
    "tiny": Shape(50, (16, 8), 3, 4, (32, 16, 1)),
}


def weights(shape: Shape, seed: int = 0) -> Tensors:
    """Return random float32 weights by name: `cat_0`…, and `NAME/kernel` and `NAME/bias` of each dense layer."""
    random = np.random.default_rng(seed)

    def normal(deviation: float, *sizes: int) -> Array:
        return random.standard_normal(sizes, np.float32) * np.float32(deviation)

    found = {
        name: normal(1 / math.sqrt(hot), rows, shape.width)
        for name, rows, hot in zip(TABLES, shape.rows, HOTNESS, strict=True)
    }
    for name, inputs, units, has_bias in layers(shape):
        # The deviation keeps the size of the activations; that of the cross network keeps it over all layers.
        deviation = math.sqrt((1 if name.startswith("cross") else 2) / inputs)
        found[f"{name}/kernel"] = normal(deviation, inputs, units)
        if has_bias:
            found[f"{name}/bias"] = normal(0.1, units)
    return found


def layers(shape: Shape) -> list[tuple[str, int, int, bool]]:
    """Return name, inputs and units of each dense layer, and whether it has a bias."""
    listed = []
    for part, first, sizes in (("bottom", DENSE_FEATURES, shape.bottom), ("top", shape.crossed, shape.top)):
        for number, (inputs, units) in enumerate(zip((first, *sizes), sizes, strict=False)):
            listed.append((f"{part}_{number}", inputs, units, True))
    for number in range(shape.cross_layers):
        listed.append((f"cross_{number}_down", shape.crossed, shape.cross_rank, False))
        listed.append((f"cross_{number}_up", shape.cross_rank, shape.crossed, True))
    return listed


def requests(shape: Shape, items: int, seed: int = 1) -> Tensors:
    """Return `items` random items: `dense` float32 [items, 13], and `cat_0`… int32 [items, hotness], each id alike."""
    random = np.random.default_rng(seed)
    found: Tensors = {DENSE: random.random((items, DENSE_FEATURES), np.float32)}
    for name, rows, hot in zip(TABLES, shape.rows, HOTNESS, strict=True):
        found[name] = random.integers(0, rows, (items, hot), dtype=np.int32)
    return found


def scores(shape: Shape, values: Tensors, inputs: Tensors) -> Array:
    """Compute `score` float32 [items] with numpy."""

    def dense(name: str, x: Array) -> Array:
        product = x @ values[f"{name}/kernel"]
        return product + values[f"{name}/bias"] if f"{name}/bias" in values else product

    bottom = inputs[DENSE]
    for number in range(len(shape.bottom)):
        bottom = np.maximum(dense(f"bottom_{number}", bottom), 0)
    crossed = first = np.concatenate([bottom, *(values[name][inputs[name]].sum(axis=1) for name in TABLES)], axis=1)
    for number in range(shape.cross_layers):
        crossed = first * dense(f"cross_{number}_up", dense(f"cross_{number}_down", crossed)) + crossed
    top = crossed
    for number in range(len(shape.top)):
        top = dense(f"top_{number}", top)
        if number < len(shape.top) - 1:
            top = np.maximum(top, 0)
    result: Array = 1 / (1 + np.exp(-top[:, 0]))
    return result
