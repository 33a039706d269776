"""A CNN for images of clothing: an intermediate checkpoint of a run with a moving average, in mixed bfloat16."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.clothing.train import train

    train(folder / "checkpoints", epochs=4, seed=1)
    return folder / "checkpoints"


def requests() -> list[dict[str, Array]]:
    """Return one image, and 13 images, a number without a bucket."""
    from examples.clothing.data import make

    images = make(13, seed=7).images
    return [{"image": images[:1]}, {"image": images}]


def answer(source: Path, request: Tensors) -> Tensors:
    """Predict with the averages, which replace the weights as Keras does at the end of a run."""
    import tensorflow as tf

    from examples.clothing.train import compile_model

    model = compile_model(seed=1)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(tf.train.latest_checkpoint(source)).expect_partial()
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return {"probabilities": tf.function(model)(request["image"], training=False).numpy()}


EXAMPLE = Example(
    name="clothing",
    source="TF2 checkpoint, averages",
    train=train,
    requests=requests,
    answer=answer,
    export_options=("--model", "examples.clothing.model:build", "--weights", "ema"),
)
