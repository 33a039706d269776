"""The JAX model that `python -m benchmarks export_memory` exports, named on the exporter's command line."""

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


def save(directory: Path) -> None:
    """Save one step of a CheckpointManager, like training does."""
    import orbax.checkpoint as ocp

    variables = wide().init(jax.random.key(0), jnp.zeros((1, _UNITS)))
    with ocp.CheckpointManager(directory.absolute()) as manager:
        manager.save(1, args=ocp.args.StandardSave(variables))


if __name__ == "__main__":
    save(Path(sys.argv[1]))
