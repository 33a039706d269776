"""Train a classifier of irises with plain TensorFlow and save it as a SavedModel, with the species' names as strings.

python examples/iris_saved_model/train.py --out saved/
tpuserve export saved/ models/iris
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def load() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return measures float32 [150, 4] in centimetres, and species int64 [150] from 0 to 2. Downloads nothing."""
    from sklearn.datasets import load_iris

    data = load_iris()
    return data.data.astype(np.float32), data.target.astype(np.int64)


def train(path: Path, steps: int = 300) -> Path:
    """Train a logistic regression by gradient descent, and save it with one signature of two outputs."""
    import tensorflow as tf

    measures, species = load()
    rng = np.random.default_rng(1)
    model = tf.Module()
    model.weight = tf.Variable(rng.normal(0.0, 0.1, (4, 3)).astype(np.float32), name="weight")
    model.bias = tf.Variable(tf.zeros(3), name="bias")
    model.names = tf.constant(["setosa", "versicolor", "virginica"])
    centre, spread = measures.mean(axis=0), measures.std(axis=0)

    def classify(measures: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax((measures - centre) / spread @ model.weight + model.bias)
        return {"probabilities": probabilities, "species": tf.gather(model.names, tf.argmax(probabilities, axis=1))}

    signature = tf.function(classify, input_signature=[tf.TensorSpec([None, 4], tf.float32, "measures")])

    for _ in range(steps):
        with tf.GradientTape() as tape:
            right = tf.gather(signature(tf.constant(measures))["probabilities"], species, batch_dims=1)
            loss = -tf.reduce_mean(tf.math.log(right))
        for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables),
                                      strict=True):  # fmt: skip
            variable.assign_sub(0.5 * gradient)
    print(f"loss after {steps} steps: {float(loss):.3f}")
    tf.saved_model.save(model, str(path), signatures=signature)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the SavedModel.")
    train(parser.parse_args().out)


if __name__ == "__main__":
    main()
