"""Trained and untrained models with held-out rows: flowers, shades, letters in order, and a table of tumours."""

import csv
import string

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.model_selection import train_test_split


def flowers():
    x = keras.Input((4,), name="x")
    y = layers.Dense(16, "relu")(x)
    return keras.Model(x, layers.Dense(3, name="scores")(y))


def _save_both(folder, model, untrained):
    """Save a trained model and one with random weights, each as a TF2 checkpoint."""
    for name, one in (("trained", model), ("untrained", untrained)):
        tf.train.Checkpoint(model=one).save(str(folder / name / "ckpt"))


def _answers(model, inputs):
    outputs = tf.function(lambda x: model(x, training=False))(tf.constant(inputs))
    return outputs if isinstance(outputs, dict) else {model.output_names[0]: outputs}


def save_flowers(folder):
    keras.utils.set_random_seed(3)
    iris = load_iris()
    x, test_x, y, test_y = train_test_split(iris.data, iris.target, test_size=50, random_state=1, stratify=iris.target)
    mean, deviation = x.mean(0), x.std(0)
    x, scaled = ((one - mean) / deviation for one in (x, test_x))
    model = flowers()
    untrained = keras.models.clone_model(model)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, epochs=60, batch_size=10, verbose=0)
    _save_both(folder, model, untrained)
    scaled = scaled.astype(np.float32)
    np.savez(folder / "rows.npz", x=scaled, label=test_y)
    np.savez(folder / "shifted.npz", x=scaled, label=(test_y + 1) % 3)
    np.savez(folder / "unscaled.npz", x=test_x.astype(np.float32), label=test_y)
    names = [str(name) for name in iris.target_names]
    (folder / "labels.txt").write_text("\n".join(names))
    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*iris.feature_names, "species"])
        writer.writerows([*map(str, row), names[label]] for row, label in zip(scaled, test_y))
    return {"serving_default": [({"x": scaled[:5]}, {"scores": _answers(model, scaled[:5])["scores"].numpy()})]}


def shades():
    """Build a classifier of pictures from 0 to 1."""
    image = keras.Input((12, 12, 1), name="image")
    y = layers.Dense(24, "tanh")(layers.Flatten()(image))
    return keras.Model(image, layers.Dense(3, "softmax", name="scores")(y))


def save_shades(folder):
    """Save dark, middle and bright pictures as PNG files in a TFRecord."""
    keras.utils.set_random_seed(3)
    generator = np.random.default_rng(1)
    label = generator.integers(0, 3, 300)
    pixels = (generator.integers(0, 60, (300, 12, 12, 1)) + 80 * label[:, None, None, None]).astype(np.uint8)
    model = shades()
    untrained = keras.models.clone_model(model)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(pixels[:240] / 255, label[:240], epochs=20, batch_size=20, verbose=0)
    _save_both(folder, model, untrained)
    files = [tf.io.encode_png(picture).numpy() for picture in pixels[240:]]
    with tf.io.TFRecordWriter(str(folder / "rows.tfrecord")) as writer:
        for content, one in zip(files, label[240:]):
            # Names and numbers from 1, as in the records of ImageNet.
            feature = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                "image/class/text": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[b"dark mid bright".split()[one]])
                ),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[one + 1])),
                "image/height": tf.train.Feature(int64_list=tf.train.Int64List(value=[12])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    (folder / "labels.txt").write_text("dark\nmid\nbright\n")
    inputs = (pixels[240:245] / 255).astype(np.float32)
    return {"serving_default": [({"image": inputs}, {"scores": _answers(model, inputs)["scores"].numpy()})]}


def successor():
    """Build a language model: logits of the next letter."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    y = layers.GRU(24, return_sequences=True)(layers.Embedding(27, 16)(ids))
    return keras.Model(ids, layers.Dense(27, name="logits")(y))


def save_letters_in_order(folder):
    """Save a model of pieces of the alphabet. Labels are the next letters, with -100 behind the end."""
    keras.utils.set_random_seed(3)
    generator = np.random.default_rng(1)
    starts, sizes = generator.integers(0, 26, 200), generator.integers(3, 13, 200)
    letters_of = [np.array([(start + one) % 26 + 1 for one in range(size + 1)]) for start, size in zip(starts, sizes)]
    assert len(string.ascii_lowercase) == 26
    ids, labels = np.zeros((200, 12), np.int32), np.full((200, 12), -100)
    for row, piece in enumerate(letters_of):
        ids[row, : len(piece) - 1], labels[row, : len(piece) - 1] = piece[:-1], piece[1:]
    model = successor()
    untrained = keras.models.clone_model(model)
    model.compile(
        keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
    )
    model.fit(ids[:160], labels[:160], epochs=15, batch_size=20, verbose=0)
    _save_both(folder, model, untrained)
    np.savez(folder / "rows.npz", ids=ids[160:], label=labels[160:])
    np.savez(folder / "unshifted.npz", ids=ids[160:], label=np.where(labels[160:] < 0, -100, ids[160:]))
    return {"serving_default": [({"ids": ids[:5]}, {"logits": _answers(model, ids[:5])["logits"].numpy()})]}


def tumours():
    x = keras.Input((30,), name="x")
    y = layers.Dense(8, "relu")(x)
    return keras.Model(x, {"risk": layers.Dense(1, name="risk")(y), "size": layers.Dense(1, name="size")(y)})


def save_tumours(folder):
    """Save a model with a logit of two classes, and a number."""
    keras.utils.set_random_seed(3)
    data = load_breast_cancer()
    table = ((data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32)
    x, test_x, y, test_y = train_test_split(table, data.target, test_size=120, random_state=1, stratify=data.target)
    model = tumours()
    untrained = tumours()
    model.compile("adam", {"risk": keras.losses.BinaryCrossentropy(from_logits=True), "size": "mse"})
    model.fit(x, {"risk": y.astype(np.float32), "size": x[:, 0]}, epochs=25, batch_size=20, verbose=0)
    _save_both(folder, model, untrained)
    np.savez(folder / "rows.npz", x=test_x, benign=test_y, radius=test_x[:, 0])
    outputs = _answers(model, test_x[:5])
    return {"serving_default": [({"x": test_x[:5]}, {name: value.numpy() for name, value in outputs.items()})]}
