"""The recommender in Flax. `python -m benchmarks.recommender.flax_model SHAPE DIRECTORY` writes a checkpoint."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen
from flax.traverse_util import unflatten_dict

from benchmarks.recommender.dlrm import DENSE, SCORE, SHAPES, TABLES, Shape, layers, weights


class Recommender(linen.Module):  # type: ignore[misc]  # flax is untyped
    """`dense` float32 [batch, 13] and `cat_0`… int32 [batch, hotness] → `score` float32 [batch]."""

    shape: Shape

    @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:  # arrays of jax
        dense = {name: linen.Dense(units, use_bias, name=name) for name, _, units, use_bias in layers(self.shape)}
        bottom = inputs[DENSE]
        for number in range(len(self.shape.bottom)):
            bottom = linen.relu(dense[f"bottom_{number}"](bottom))
        found = [
            linen.Embed(rows, self.shape.width, name=name)(inputs[name]).sum(axis=1)
            for name, rows in zip(TABLES, self.shape.rows, strict=True)
        ]
        crossed = first = jnp.concatenate([bottom, *found], axis=1)
        for number in range(self.shape.cross_layers):
            crossed = first * dense[f"cross_{number}_up"](dense[f"cross_{number}_down"](crossed)) + crossed
        top = crossed
        for number in range(len(self.shape.top)):
            top = dense[f"top_{number}"](top)
            if number < len(self.shape.top) - 1:
                top = linen.relu(top)
        return {SCORE: linen.sigmoid(top[:, 0])}


def build(shape: str) -> Recommender:
    """Build the model for `--model benchmarks.recommender.flax_model:build --model-arg shape=mlperf`."""
    return Recommender(SHAPES[shape])


def main(shape_name: str, directory: str) -> None:
    import orbax.checkpoint as ocp

    values = {
        ((name, "embedding") if name in TABLES else tuple(name.split("/"))): jax.numpy.asarray(value)
        for name, value in weights(SHAPES[shape_name]).items()
    }
    with ocp.CheckpointManager(Path(directory).absolute()) as manager:
        manager.save(1, args=ocp.args.StandardSave({"params": unflatten_dict(values)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
