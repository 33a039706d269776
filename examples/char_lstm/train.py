"""Train the character LSTM on the repository's documentation with Flax NNX, and save Orbax checkpoints.

    python examples/char_lstm/train.py --out .demo/char_lstm
    tpuserve export .demo/char_lstm models/char_lstm --model examples.char_lstm.model:build \\
        --input 'char:int32[batch]' --input 'hidden:float32[batch,128]' --input 'cell:float32[batch,128]'
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BATCH, LENGTH, WIDTH = 32, 64, 128


def loss_of(model: Any, chars: Any) -> Any:  # noqa: ANN401 - a module and arrays of jax
    """Return the mean cross entropy of the next character from an empty state. `chars` is int32 [batch, length + 1]."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    graph, state = nnx.split(model)

    def step(carry: Any, char: Any) -> Any:  # noqa: ANN401 - as above
        outputs = nnx.merge(graph, state)(char, *carry)
        return (outputs["hidden"], outputs["cell"]), outputs["logits"]

    empty = jnp.zeros((chars.shape[0], WIDTH))
    _, logits = jax.lax.scan(step, (empty, empty), chars[:, :-1].T)
    return optax.softmax_cross_entropy_with_integer_labels(logits, chars[:, 1:].T).mean()


def train(out: Path, steps: int, seed: int) -> float:
    """Save the checkpoint of the last step in `out`, and return its loss in nats per character."""
    import numpy as np
    import optax
    import orbax.checkpoint as ocp
    from flax import nnx

    from examples.char_lstm.model import build
    from examples.char_lstm.text import load

    text, random = load(), np.random.default_rng(seed)
    model = build(WIDTH)()
    optimizer = nnx.Optimizer(model, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(4e-3)), wrt=nnx.Param)

    @nnx.jit  # type: ignore[untyped-decorator]  # flax is untyped
    def update(model: Any, optimizer: Any, chars: Any) -> Any:  # noqa: ANN401 - as above
        loss, gradient = nnx.value_and_grad(loss_of)(model, chars)
        optimizer.update(model, gradient)
        return loss

    loss = float("nan")
    for step in range(1, steps + 1):
        starts = random.integers(0, len(text) - LENGTH - 1, BATCH)
        loss = float(update(model, optimizer, text[starts[:, None] + np.arange(LENGTH + 1)]))
        if step % 100 == 0 or step == steps:
            print(f"step {step:>4}/{steps}  loss {loss:.3f}", flush=True)
    with ocp.CheckpointManager(out.absolute()) as manager:
        items = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
        saved = {name: ocp.args.StandardSave(state) for name, state in items.items()}
        manager.save(steps, args=ocp.args.Composite(**saved))
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoints. Created if missing.")
    parser.add_argument("--steps", type=int, default=1000, help="Number of training batches (default: 1000).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the random batches of text (default: 1).")
    options = parser.parse_args()
    train(options.out, options.steps, options.seed)


if __name__ == "__main__":
    main()
