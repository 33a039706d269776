"""JAX implementations of operations that torchax cannot lower with free sizes."""

from typing import Any

_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: Any,  # noqa: ANN401 - arrays or tracers of JAX, here and below
    indices: Any,  # noqa: ANN401
    offsets: Any,  # noqa: ANN401
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,  # noqa: ANN401
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, None, None, None]:
    """Compute `aten._embedding_bag` for serving: bags of shape [bags, width], and None for training's outputs.

    torchax's implementation needs the values of `offsets`, which are unknown during lowering.

    `indices` [n] holds the indices of all bags in order, and `offsets` [bags] the start of each bag. The result ignores
    indices equal to `padding_idx`. An empty bag is zeros.
    """
    import jax.numpy as jnp

    if include_last_offset:
        offsets = offsets[:-1]
    bags, count = offsets.shape[0], indices.shape[0]
    bag_of = jnp.sum(jnp.arange(count)[:, None] >= offsets[None, :], axis=1) - 1
    counts = (indices != padding_idx) & (bag_of >= 0)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    sizes = jnp.zeros(bags, jnp.int32).at[bag_of].add(counts.astype(jnp.int32))[:, None]
    if mode == _MAX:
        lowest = jnp.full((bags, weight.shape[1]), -jnp.inf, weight.dtype)
        largest = lowest.at[bag_of].max(jnp.where(counts[:, None], rows, -jnp.inf))
        return jnp.where(sizes > 0, largest, 0).astype(weight.dtype), None, None, None
    total = jnp.zeros((bags, weight.shape[1]), rows.dtype).at[bag_of].add(jnp.where(counts[:, None], rows, 0))
    return (total / jnp.maximum(sizes, 1).astype(total.dtype) if mode == _MEAN else total), None, None, None


def arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, **kwargs: Any) -> Any:  # noqa: ANN401 - sizes of JAX
    """Compute `aten.arange.start_step`, because jnp.arange takes no step with a free end. Ignores `kwargs` (device)."""
    import jax.numpy as jnp
    from torchax.ops.mappings import t2j_dtype

    if not isinstance(step, int) or isinstance(start, float) or isinstance(end, float):
        return jnp.arange(start, end, step, dtype=dtype and t2j_dtype(dtype))
    count = -((start - end) // step)
    return (start + step * jnp.arange(count)).astype(dtype and t2j_dtype(dtype))
