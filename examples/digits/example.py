"""The digits CNN: a checkpoint of tf.train.CheckpointManager, with optimizer and step, in mixed bfloat16."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.digits.train import train

    train(folder / "checkpoints", epochs=3, seed=1)
    return folder / "checkpoints"


def requests() -> list[dict[str, Array]]:
    """Return one digit, and 21 digits, a number without a bucket."""
    from examples.digits.data import load

    _, held_out = load()
    return [{"image": held_out.images[:1]}, {"image": held_out.images[:21]}]


def answer(source: Path, request: Tensors) -> Tensors:
    import tensorflow as tf

    from examples.digits.model import build

    model = build()
    tf.train.Checkpoint(model=model).restore(tf.train.latest_checkpoint(source)).expect_partial()
    return {"probabilities": tf.function(model)(request["image"], training=False).numpy()}


EXAMPLE = Example(
    name="digits",
    source="TF2 checkpoint",
    train=train,
    requests=requests,
    answer=answer,
    export_options=("--model", "examples.digits.model:build"),
)
