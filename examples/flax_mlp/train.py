"""Train the digits classifier with Flax linen and Optax, and save it with orbax.checkpoint.CheckpointManager.

    python examples/flax_mlp/train.py --out .demo/flax
    tpuserve export .demo/flax models/flax_mlp --model examples.flax_mlp.model:build \\
        --input 'image:float32[batch,8,8,1]'

Each step's directory contains parameters, batch statistics, a moving average of the parameters, the optimizer's state
and the random key. `tpuserve export` uses the average and the statistics.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BATCH = 64
AVERAGE_DECAY = 0.95


def start(seed: int) -> dict[str, Any]:
    """Return the state of training before its first step."""
    import jax
    import jax.numpy as jnp

    from examples.flax_mlp.model import build

    key, dropout = jax.random.split(jax.random.key(seed))
    variables = build().init(key, jnp.zeros((1, 8, 8, 1)))
    params = variables["params"]
    return {
        "params": params,
        "batch_stats": variables["batch_stats"],
        "ema_params": params,
        "opt_state": _optimizer().init(params),
        "dropout_rng": jax.random.key_data(dropout),
        "step": 0,
    }


def _optimizer() -> Any:  # noqa: ANN401 - optax is untyped
    import optax

    return optax.adam(3e-3)


def update(state: dict[str, Any], images: Any, labels: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
    """Return the state after one step. The caller compiles this with jax.jit."""
    import jax
    import jax.numpy as jnp
    import optax

    from examples.flax_mlp.model import build

    key = jax.random.fold_in(jax.random.wrap_key_data(state["dropout_rng"]), state["step"])

    def loss(params: Any) -> Any:  # noqa: ANN401 - trees and arrays of jax
        outputs, changed = build().apply(
            {"params": params, "batch_stats": state["batch_stats"]}, images, train=True,
            rngs={"dropout": key}, mutable=["batch_stats"],
        )  # fmt: skip
        right = jnp.take_along_axis(outputs["probabilities"], labels[:, None], axis=1)
        return -jnp.log(right + 1e-7).mean(), changed["batch_stats"]

    gradient, statistics = jax.grad(loss, has_aux=True)(state["params"])
    changes, opt_state = _optimizer().update(gradient, state["opt_state"])
    params = optax.apply_updates(state["params"], changes)
    average = optax.incremental_update(params, state["ema_params"], 1 - AVERAGE_DECAY)
    return {
        **state, "params": params, "batch_stats": statistics, "ema_params": average, "opt_state": opt_state,
        "step": state["step"] + 1,
    }  # fmt: skip


def train(out: Path, epochs: int, seed: int) -> float:
    """Save a checkpoint of each of the last two epochs in `out`, and return the accuracy on held-out digits."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    from examples.digits.data import load
    from examples.flax_mlp.model import build

    training, held_out = load()
    state, step, random = start(seed), jax.jit(update), np.random.default_rng(seed)
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(out.absolute(), options=options) as manager:
        for epoch in range(1, epochs + 1):
            rows = random.permutation(len(training.labels))
            for start_at in range(0, len(rows) - BATCH + 1, BATCH):
                chosen = rows[start_at : start_at + BATCH]
                state = step(state, training.images[chosen], training.labels[chosen])
            manager.save(int(state["step"]), args=ocp.args.StandardSave(state))
            print(f"epoch {epoch:>2}/{epochs}  step {int(state['step'])}", flush=True)
    variables = {"params": state["ema_params"], "batch_stats": state["batch_stats"]}
    probabilities = build().apply(variables, held_out.images)["probabilities"]
    accuracy = float((np.asarray(probabilities).argmax(axis=1) == held_out.labels).mean())
    print(f"accuracy on {len(held_out.labels)} held-out digits: {accuracy:.4f}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoints. Created if missing.")
    parser.add_argument("--epochs", type=int, default=15, help="Number of epochs (default: 15).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of weights, shuffling and dropout (default: 1).")
    options = parser.parse_args()
    train(options.out, options.epochs, options.seed)


if __name__ == "__main__":
    main()
