"""Train the classifier of sentences for a few seconds, and save a checkpoint with model, optimizer and step.

    python examples/text_classifier/train.py --out .demo/sentences
    tpuserve export .demo/sentences .demo/models/places --model examples.text_classifier.model:build \\
        --sequence-buckets 8,16,32 --labels examples/text_classifier/labels.txt \\
        --signature serving_default=tensor --signature examples=tf_example --signature classes=classify \\
        --signature text=examples.text_classifier.text_signature:serve
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BATCH = 32
ROWS = 960
HELD_OUT = 200


def train(out: Path, epochs: int = 4) -> float:
    """Train, write a checkpoint into `out`, and return the accuracy on held-out sentences."""
    import keras
    import numpy as np
    import tensorflow as tf

    from examples.digits.train import choose_strategy
    from examples.text_classifier.data import LONGEST, encode, make
    from examples.text_classifier.model import build

    keras.utils.set_random_seed(1)
    sentences, held_out = make(ROWS, seed=1), make(HELD_OUT, seed=2)
    with choose_strategy().scope():
        model = build()
        model.compile(keras.optimizers.Adam(3e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    # Pad to one length, because a TPU compiles a program for each.
    ids = [np.pad(one, ((0, 0), (0, LONGEST - one.shape[1]))) for one in map(encode, (sentences.texts, held_out.texts))]
    model.fit(ids[0], sentences.places, BATCH, epochs, verbose=0)
    accuracy = float(model.evaluate(ids[1], held_out.places, BATCH, verbose=0)[1])
    step = tf.Variable(int(model.optimizer.iterations), dtype=tf.int64, name="step")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)
    manager = tf.train.CheckpointManager(checkpoint, str(out), max_to_keep=1)
    manager.save(checkpoint_number=int(step))
    print(f"accuracy on {HELD_OUT} held-out sentences: {accuracy:.3f}\ncheckpoint: {out}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoint. Created if missing.")
    train(parser.parse_args().out)


if __name__ == "__main__":
    main()
