"""Train a stateful Keras GRU to forecast series, segment by segment, and save a TF2 checkpoint.

python examples/sine_gru/train.py --out .demo/sine_gru
tpuserve export .demo/sine_gru models/sine_gru --model examples.sine_gru.model:build --allow-unused '*state*'
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SERIES, PART = 16, 25


def train(out: Path, epochs: int, seed: int) -> float:
    """Save a checkpoint in `out`, and return the mean squared error of the last epoch."""
    import keras
    import tensorflow as tf

    from examples.sine_gru.data import make
    from examples.sine_gru.model import stateful

    keras.utils.set_random_seed(seed)
    model = stateful(SERIES)
    model.compile(keras.optimizers.Adam(1e-2), loss="mse")
    series = make(SERIES, 8 * PART + 1, seed)[..., None]
    loss = float("nan")
    for epoch in range(1, epochs + 1):
        model.get_layer("gru").reset_states()
        for start in range(0, series.shape[1] - 1, PART):
            part = series[:, start : start + PART + 1]
            loss = float(model.train_on_batch(part[:, :-1], part[:, 1:]))
        print(f"epoch {epoch:>2}/{epochs}  loss {loss:.4f}", flush=True)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    tf.train.CheckpointManager(checkpoint, str(out), max_to_keep=1).save()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoint. Created if missing.")
    parser.add_argument("--epochs", type=int, default=20, help="Number of epochs (default: 20).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of weights and series (default: 1).")
    options = parser.parse_args()
    train(options.out, options.epochs, options.seed)


if __name__ == "__main__":
    main()
