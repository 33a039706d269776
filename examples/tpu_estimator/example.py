"""A run of TPUEstimator: a `.meta` with the infeed, its training loop and two replicas, and a name-based checkpoint."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.tpu_estimator.train import train

    return train(folder)


def requests() -> list[dict[str, Array]]:
    """Return one digit, and 21 digits. Training batches had 32."""
    from examples.digits.data import load

    _, held_out = load()
    return [{"image": held_out.images[:1]}, {"image": held_out.images[:21]}]


def answer(source: Path, request: Tensors) -> Tensors:
    """Predict with the model function in inference mode, restored like in TensorFlow 1."""
    import tensorflow as tf

    from examples.tpu_estimator.model import predict

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        outputs = predict(tf.constant(request["image"]))
        v1.train.Saver().restore(session, str(source.with_suffix("")))
        answers: Tensors = session.run(outputs)
        return answers


EXAMPLE = Example(
    name="tpu_estimator",
    source="TF1 .meta of a TPU",
    train=train,
    requests=requests,
    answer=answer,
    export_options=("--input-tensor", "InfeedQueue/dequeue=image", "--output-tensor", "probabilities"),
)
