"""The digits classifier in Flax linen, for training and, with `--model examples.flax_mlp.model:build`, for export."""

from typing import Any

import jax.numpy as jnp
from flax import linen


class DigitsMlp(linen.Module):  # type: ignore[misc]  # flax is untyped
    """`image` float32 [batch, 8, 8, 1] from 0 to 1 → `probabilities` float32 [batch, 10]."""

    units: int
    dtype: Any

    @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
    def __call__(self, image: Any, train: bool = False) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        x = image.reshape((image.shape[0], -1))
        x = linen.Dense(self.units, dtype=self.dtype, name="hidden")(x)
        x = linen.BatchNorm(use_running_average=not train, dtype=self.dtype, name="norm")(x)
        x = linen.Dropout(0.2, deterministic=not train)(linen.relu(x))
        logits = linen.Dense(10, dtype=self.dtype, name="logits")(x)
        # Use float32, because the sum in bfloat16 is off by up to a percent.
        return {"probabilities": linen.softmax(logits.astype(jnp.float32))}


def build(units: int = 64, dtype: str = "float32") -> DigitsMlp:
    """Build the classifier. `dtype` is the compute dtype of the layers; parameters are float32."""
    return DigitsMlp(units, jnp.dtype(dtype))
