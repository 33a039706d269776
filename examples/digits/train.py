"""Train the digits classifier like on a TPU, and save checkpoints with model, optimizer and step, and held-out rows.

    python examples/digits/train.py --out .demo/checkpoints
    tpuserve export .demo/checkpoints .demo/models/digits --model examples.digits.model:build \\
        --labelled .demo/checkpoints/held_out.npz --expect "accuracy>=0.95"

The rows of held_out.npz are not in the training. The exporter evaluates the written version on them.

On a machine with a TPU it trains there under TPUStrategy. Elsewhere the same code uses TensorFlow's default device. If
the directory already contains a checkpoint, training continues from it, as after a preemption.
"""

import argparse
import contextlib
import glob
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    from collections.abc import Iterator

    import keras
    import tensorflow as tf

    from examples.digits.data import Digits

GLOBAL_BATCH = 64
CHECKPOINTS_KEPT = 3


@contextlib.contextmanager
def quiet_start() -> "Iterator[None]":
    """Hide TensorFlow's startup messages (missing CUDA, oneDNN).

    TensorFlow writes them from C++ before it reads any logging setting, so this redirects the file descriptor.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def find_tpu() -> str | None:
    """Return the address of a TPU, "local" for a TPU of this machine, or None.

    Without an address, TPUClusterResolver calls a metadata server, and waits long if there is none. This check avoids
    that.
    """
    named = os.environ.get("TPU_NAME") or os.environ.get("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
    if named:
        return named
    has_chips = bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))
    has_runtime = importlib.util.find_spec("libtpu") is not None or Path("/lib/libtpu.so").exists()
    return "local" if has_chips and has_runtime else None


def choose_strategy() -> "tf.distribute.Strategy":
    """Return TPUStrategy if there is a TPU, or else the default strategy."""
    import tensorflow as tf

    address = find_tpu()
    if address is None:
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def batches(digits: "Digits", seed: int) -> "tf.data.Dataset":
    """Return shuffled batches of one shape, without the remainder: a TPU compiles one program per shape."""
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((digits.images, digits.labels)).cache()
    rows = rows.shuffle(len(digits.labels), seed=seed, reshuffle_each_iteration=True)
    return rows.batch(GLOBAL_BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def compile_model(seed: int, steps: int) -> "keras.Model":
    """Return the model with its optimizer built, so that a checkpoint restores both. `steps` is the total number."""
    import keras

    from examples.digits.model import build

    keras.utils.set_random_seed(seed)
    model = build("mixed_bfloat16")
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, decay_steps=steps)
    optimizer = keras.optimizers.AdamW(learning_rate=schedule, weight_decay=1e-4)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def save_each_epoch(
    model: "keras.Model", manager: "tf.train.CheckpointManager", step: "tf.Variable", epochs: int
) -> "keras.callbacks.Callback":
    """Return a callback that writes `ckpt-STEP` and prints the progress after every epoch."""
    import keras

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        step.assign(int(model.optimizer.iterations))
        path = manager.save(checkpoint_number=int(step))
        progress = f"epoch {epoch + 1:>2}/{epochs}  loss {logs['loss']:.4f}  accuracy {logs['accuracy']:.4f}"
        print(f"{progress}  {Path(path).name}", flush=True)

    return keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)


def train(out: Path, epochs: int, seed: int) -> float:
    """Train up to `epochs` in total, save checkpoints and held-out digits in `out`, and return the accuracy on them."""
    with quiet_start():
        import tensorflow as tf

        tf.config.list_physical_devices()

    from examples.digits import data

    training, held_out = data.load()
    steps_per_epoch = len(training.labels) // GLOBAL_BATCH
    strategy = choose_strategy()
    with strategy.scope():
        model = compile_model(seed, epochs * steps_per_epoch)
        step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)
    manager = tf.train.CheckpointManager(checkpoint, str(out), max_to_keep=CHECKPOINTS_KEPT)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
        print(f"resuming from {Path(manager.latest_checkpoint).name}")
    replicas = strategy.num_replicas_in_sync
    print(f"{len(training.labels)} training digits, mixed_bfloat16, replicas: {replicas}", flush=True)
    model.fit(
        batches(training, seed),
        epochs=epochs,
        initial_epoch=int(step) // steps_per_epoch,
        shuffle=False,  # the data set shuffles
        verbose=0,
        callbacks=[save_each_epoch(model, manager, step, epochs)],
    )
    data.save(held_out, out / data.HELD_OUT)
    accuracy = float(model.evaluate(held_out.images, held_out.labels, batch_size=GLOBAL_BATCH, verbose=0)[1])
    print(f"accuracy on {len(held_out.labels)} held-out digits: {accuracy:.4f}")
    print(f"checkpoints: {out}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoints. Created if missing.")
    parser.add_argument("--epochs", type=int, default=15, help="Total number of epochs (default: 15).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of weights, shuffling and dropout (default: 1).")
    options = parser.parse_args()
    train(options.out, options.epochs, options.seed)


if __name__ == "__main__":
    main()
