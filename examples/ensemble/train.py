"""Train a classifier of clothing, and save it with a decoder of JPEG files and a table of names around it.

    python examples/ensemble/train.py --out .demo/ensemble

Writes three SavedModels, the steps of the ensemble in `scheduling.pbtxt`: `decoder`, `classifier` and `names`.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.clothing.data import KINDS, SIDE, make

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorflow as tf

HIDDEN = 32


def train(out: Path, steps: int, seed: int) -> None:
    """Write the three models below `out`."""
    import tensorflow as tf

    strings, images, scores = (
        tf.TensorSpec([None], tf.string, "jpeg"),
        tf.TensorSpec([None, SIDE, SIDE, 1], tf.float32, "image"),
        tf.TensorSpec([None, len(KINDS)], tf.float32, "probabilities"),
    )
    _save(out / "decoder", tf.Module(), _decode, strings)
    classifier = _Classifier(seed)
    classifier.fit(steps, seed)
    _save(out / "classifier", classifier.weights, classifier.serve, images)
    _save(out / "names", tf.Module(), _name, scores)


def _save(
    path: Path, module: "tf.Module", serve: "Callable[[tf.Tensor], dict[str, tf.Tensor]]", spec: "tf.TensorSpec"
) -> None:
    """Save `serve` as the signature of `module`, which holds its variables."""
    import tensorflow as tf

    module.serve = tf.function(serve, input_signature=[spec])
    tf.saved_model.save(module, str(path), signatures=module.serve)


def _decode(jpeg: "tf.Tensor") -> "dict[str, tf.Tensor]":
    """Decode files of any size to grey images from 0 to 1."""
    import tensorflow as tf

    def decode(file: tf.Tensor) -> tf.Tensor:
        pixels = tf.io.decode_jpeg(file, channels=1)
        return tf.ensure_shape(tf.image.resize(pixels, (SIDE, SIDE)), (SIDE, SIDE, 1)) / 255.0

    return {"image": tf.map_fn(decode, jpeg, fn_output_signature=tf.float32)}


class _Classifier:
    """Two layers. `weights` is the module of their variables."""

    def __init__(self, seed: int) -> None:
        import tensorflow as tf

        random = tf.random.Generator.from_seed(seed)
        pixels = SIDE * SIDE
        self.weights = tf.Module()
        self.weights.hidden = tf.Variable(random.normal((pixels, HIDDEN), stddev=pixels**-0.5))
        self.weights.hidden_bias = tf.Variable(tf.zeros(HIDDEN))
        self.weights.out = tf.Variable(random.normal((HIDDEN, len(KINDS)), stddev=HIDDEN**-0.5))
        self.weights.out_bias = tf.Variable(tf.zeros(len(KINDS)))

    def serve(self, image: "tf.Tensor") -> "dict[str, tf.Tensor]":
        """Return the probability of each kind of clothing."""
        import tensorflow as tf

        return {"probabilities": tf.nn.softmax(self._logits(image))}

    def fit(self, steps: int, seed: int) -> None:
        """Train by gradient descent on all images at once."""
        import tensorflow as tf

        training, held_out = make(1024, seed), make(256, seed + 1)
        variables = self.weights.trainable_variables

        def step() -> None:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(training.labels, self._logits(training.images))
                loss = tf.reduce_mean(losses)
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.5 * gradient)

        compiled = tf.function(step)
        for _ in range(steps):
            compiled()
        right = tf.argmax(self._logits(held_out.images), axis=1).numpy() == held_out.labels
        print(f"accuracy on {len(held_out.labels)} held-out images: {right.mean():.4f}")

    def _logits(self, image: "tf.Tensor") -> "tf.Tensor":
        import tensorflow as tf

        weights, flat = self.weights, tf.reshape(image, (-1, SIDE * SIDE))
        hidden = tf.nn.relu(flat @ weights.hidden + weights.hidden_bias)
        return hidden @ weights.out + weights.out_bias


def _name(probabilities: "tf.Tensor") -> "dict[str, tf.Tensor]":
    """Name the most probable kind of clothing."""
    import tensorflow as tf

    return {
        "kind": tf.gather(tf.constant(KINDS), tf.argmax(probabilities, axis=1)),
        "score": tf.reduce_max(probabilities, axis=1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the SavedModels. Created if missing.")
    parser.add_argument("--steps", type=int, default=60, help="Number of training steps (default: 60).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of data and weights (default: 1).")
    options = parser.parse_args()
    train(options.out, options.steps, options.seed)


if __name__ == "__main__":
    main()
