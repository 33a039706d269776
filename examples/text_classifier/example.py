"""A transformer encoder of sentences: sequence buckets; signatures of tensors, text, tf.Examples and classes."""

from pathlib import Path

import numpy as np

from examples.example import Array, Example, Tensors

LABELS = Path(__file__).with_name("labels.txt")


def train(folder: Path) -> Path:
    from examples.text_classifier.train import train

    train(folder / "checkpoints")
    return folder / "checkpoints"


def requests() -> list[dict[str, Array]]:
    """Return one sentence, two with unknown words, and 21, a number without a bucket."""
    from examples.text_classifier.data import make

    some = ["The old rope by the QUAY", "penguins in our kettle with garlic and pepper"]
    return [{"text": np.array(texts, object)} for texts in (some[:1], some, make(21, seed=3).texts)]


def answer(source: Path, request: Tensors) -> Tensors:
    """Predict with word numbers from Python. The served graph computes them itself."""
    import tensorflow as tf

    from examples.text_classifier.data import PLACES, encode
    from examples.text_classifier.model import build

    model = build()
    tf.train.Checkpoint(model=model).restore(tf.train.latest_checkpoint(source)).expect_partial()
    scores = tf.function(model)(encode(list(request["text"])), training=False).numpy()
    return {"scores": scores, "place": np.array(PLACES, object)[scores.argmax(axis=1)]}


EXAMPLE = Example(
    name="text_classifier",
    source="TF2 checkpoint, text",
    train=train,
    requests=requests,
    answer=answer,
    export_options=(
        "--model", "examples.text_classifier.model:build", "--sequence-buckets", "8,16,32", "--labels", str(LABELS),
        "--signature", "serving_default=tensor", "--signature", "examples=tf_example",
        "--signature", "classes=classify", "--signature", "text=examples.text_classifier.text_signature:serve",
    ),
    signature="text",
)  # fmt: skip
