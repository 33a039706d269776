"""The JAX models that `python -m benchmarks export_memory` exports, named on the exporter's command line."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

_UNITS = 8192
_LAYERS = 8


class Wide(linen.Module):  # type: ignore[misc]  # flax is untyped
    """`features` [batch, 8192] → `scores` [batch, 8], like `models.wide`: 2.1 GB of float32."""

    @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
    def __call__(self, features: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        x = features
        for index in range(_LAYERS):
            x = linen.relu(linen.Dense(_UNITS, name=f"wide{index}")(x))
        return {"scores": linen.Dense(8, name="scores")(x)}


def wide() -> Wide:
    return Wide()


class Logits(linen.Module):  # type: ignore[misc]  # flax is untyped
    """`ids` [batch, 128] → `logits` [batch, 128, 50257], in the shape of GPT-2 small: 0.5 GB of float32."""

    @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
    def __call__(self, ids: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        embed = linen.Embed(50257, 768)
        x = embed(ids) + self.param("positions", linen.initializers.normal(0.02), (1024, 768))[: ids.shape[1]]
        for _ in range(12):
            x = x + linen.MultiHeadAttention(num_heads=12)(linen.LayerNorm()(x))
            x = x + linen.Dense(768)(linen.gelu(linen.Dense(3072)(linen.LayerNorm()(x))))
        return {"logits": embed.attend(linen.LayerNorm()(x))}


def logits() -> Logits:
    return Logits()


def save(directory: Path, model: str) -> None:
    """Save one step of a CheckpointManager, like training does."""
    import orbax.checkpoint as ocp

    example = jnp.zeros((1, 128), "int32") if model == "logits" else jnp.zeros((1, _UNITS))
    variables = globals()[model]().init(jax.random.key(0), example)
    with ocp.CheckpointManager(directory.absolute()) as manager:
        manager.save(1, args=ocp.args.StandardSave(variables))


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
