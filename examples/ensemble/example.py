"""A pipeline of three models in the server: a JPEG file is decoded, classified, and answered by a name."""

from pathlib import Path

import numpy as np

from examples.example import Array, Example, Part, Tensors

SCHEDULING = Path(__file__).with_name("scheduling.pbtxt")
STEPS = ("decoder", "classifier", "names")


def train(folder: Path) -> Path:
    from examples.ensemble.train import train

    train(folder / "saved", steps=60, seed=1)
    return folder / "saved"


def requests() -> list[dict[str, Array]]:
    """Return one file, and five of other sizes than the classifier's images."""
    import tensorflow as tf

    from examples.clothing.data import make

    images = [255 * image for image in make(5, seed=7).images]
    sizes = [(28, 28), (28, 28), (56, 56), (40, 30), (140, 140)]
    files = [
        tf.io.encode_jpeg(tf.cast(tf.image.resize(image, size), tf.uint8), quality=95).numpy()
        for image, size in zip(images, sizes, strict=True)
    ]
    return [{"jpeg": np.array(files[:1], object)}, {"jpeg": np.array(files, object)}]


def answer(source: Path, request: Tensors) -> Tensors:
    """Run the three SavedModels one after the other."""
    import tensorflow as tf

    decoder, classifier, names = (tf.saved_model.load(str(source / step)) for step in STEPS)
    scores = classifier.serve(decoder.serve(tf.constant(request["jpeg"], tf.string))["image"])
    named = names.serve(scores["probabilities"])
    return {output: value.numpy() for output, value in {**scores, **named}.items()}


EXAMPLE = Example(
    name="ensemble",
    source="three SavedModels, an ensemble",
    train=train,
    requests=requests,
    answer=answer,
    parts=tuple(Part(name) for name in STEPS),
    scheduling=SCHEDULING,
)
