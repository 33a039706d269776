"""JAX models in the kinds of checkpoints that people have, and models that need an option or a next step."""

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import linen as nn

RNG = np.random.default_rng(3)


class Positions(nn.Module):
    """Learned positions for up to 32 tokens, cut to the length of the input."""

    @nn.compact
    def __call__(self, ids):
        positions = self.param("positions", nn.initializers.normal(0.1), (32, 16))
        x = nn.Embed(64, 16)(ids) + positions[: ids.shape[1]]
        return {"logits": nn.Dense(64)(nn.gelu(nn.Dense(32)(x)))}


def positions():
    return Positions()


def save_positions(folder):
    """Answer the shortest and longest sequences of each bucket, and lengths between them."""
    variables = Positions().init(jax.random.key(0), np.ones((1, 8), np.int32))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", variables)
    requests = [RNG.integers(1, 64, (3, length)).astype("int32") for length in (1, 7, 8, 9, 15, 16)]
    return {"serving_default": [({"ids": ids}, Positions().apply(variables, ids)) for ids in requests]}
