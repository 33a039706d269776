"""Keras models whose layers keep vocabularies, statistics, files or tables in addition to variables."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from keras import layers

DATA = ["the cat sat on the mat", "a green sea", "the dog"]
OTHER_DATA = ["dog green cat sea", "mat sat on the a a a a"]
SENTENCES = np.array([b"the cat", b"green dog sea", b"zzz", b""], object)


class Mean(layers.Layer):
    """Not registered with Keras."""

    def call(self, x):
        return keras.ops.mean(x, 1)


def vocabulary(data=None):
    text = keras.Input((), dtype="string", name="text")
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    if data:
        vectorize.adapt(data)
    return keras.Model(text, layers.Dense(2, name="y")(Mean(name="mean")(layers.Embedding(20, 4)(vectorize(text)))))


def of_the_training():
    return vocabulary(DATA)


def of_other_data():
    return vocabulary(OTHER_DATA)


def weighted_terms(data=None):
    text = keras.Input((), dtype="string", name="text")
    vectorize = layers.TextVectorization(max_tokens=12, output_mode="tf_idf", pad_to_max_tokens=True)
    if data:
        vectorize.adapt(data)
    return keras.Model(text, layers.Dense(2, name="y")(vectorize(text)))


class Gazetteer(layers.Layer):
    """Keeps place names in a file and their populations in an array, as tokenizers of KerasHub keep theirs."""

    def __init__(self, places=(), people=(), **kwargs):
        super().__init__(**kwargs)
        self.places, self.people = list(places), np.array(people, np.float32)

    def build(self, shape):
        self.scale = self.add_weight(shape=(), name="scale", initializer="ones")

    def call(self, x):
        y = keras.ops.zeros_like(x, dtype="float32")
        for place, count in zip(self.places, self.people):
            y = y + keras.ops.cast(tf.equal(x, place), "float32") * count
        return y * self.scale

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "float32")

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["people"] = self.people

    def load_own_variables(self, store):
        self.people = np.array(store["people"])
        self.scale.assign(store["0"])

    def save_assets(self, folder):
        pathlib.Path(folder, "places.txt").write_text("\n".join(self.places))

    def load_assets(self, folder):
        self.places = pathlib.Path(folder, "places.txt").read_text().split("\n")


def places(*known):
    text = keras.Input((2,), dtype="string", name="text")
    return keras.Model(text, layers.Dense(2, name="y")(Gazetteer(*known, name="places")(text)))


class Counter(tf.Module):
    """A module with a table that grows in training, and one that does not change."""

    def __init__(self, words=()):
        self.words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        if words:
            self.words.insert(tf.constant(list(words)), tf.range(len(words), dtype=tf.int64))
        self.rows = tf.Variable(np.arange(8.0, dtype=np.float32).reshape(4, 2), name="rows")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def __call__(self, text):
        return {"y": tf.gather(self.rows, self.words.lookup(text) + 1)}


def counter():
    return Counter(["x", "y"])


def keras_2(data=None, rows=None):
    import tf_keras

    text = tf_keras.Input((), dtype=tf.string, name="text")
    vectorize = tf_keras.layers.TextVectorization(max_tokens=12, output_sequence_length=4)
    if data:
        vectorize.adapt(data)
    norm = tf_keras.layers.Normalization()
    if rows is not None:
        norm.adapt(rows)
    return tf_keras.Model(text, tf_keras.layers.Dense(2, name="y")(norm(tf.cast(vectorize(text), tf.float32))))


def keras_2_with_terms():
    """Build the model with the terms of the training, but without its mean and variance."""
    return keras_2(DATA)


def save_as(folder, model, text=SENTENCES):
    generator = np.random.default_rng(3)
    for weight in model.trainable_variables:
        weight.assign(generator.normal(size=weight.shape).astype(np.float32))
    if isinstance(model, keras.Model):
        model.save(folder / "model.keras")
    tf.train.Checkpoint(model=model).save(str(folder / "checkpoints" / "ckpt"))
    answers = model(tf.constant(text.tolist()))
    return {
        "serving_default": [({"text": text}, {"y": np.asarray(answers["y"] if isinstance(answers, dict) else answers)})]
    }


def save_vocabulary(folder):
    return save_as(folder, of_the_training())


def save_weighted_terms(folder):
    return save_as(folder, weighted_terms(DATA))


def save_places(folder):
    text = np.array([[b"Ulm", b"Kiel"], [b"Kiel", b"Rom"], [b"", b"Ulm"]], object)
    return save_as(folder, places(["Ulm", "Kiel"], [0.126, 0.247]), text)


def save_line_ends(folder):
    """Save a model with terms that Keras reads back as several, as texts from the web have."""
    lookup = layers.StringLookup()
    lookup.adapt([["a\u2028b"], ["a\u2028b"], ["a\u2028b"], ["c\x85d"], ["c\x85d"], ["z"]])
    text = keras.Input((1,), dtype="string", name="text")
    model = keras.Model(text, layers.Dense(2, name="y")(layers.Flatten()(layers.Embedding(4, 3)(lookup(text)))))
    return save_as(folder, model, np.array([[b"z"], ["c\x85d".encode()], ["a\u2028b".encode()], [b"a"]], object))


def save_counter(folder):
    return save_as(folder, Counter(["c", "b", "a"]), np.array([b"a", b"b", b"c", b"x"], object))


def save_keras_2(folder):
    return save_as(folder, keras_2(DATA, np.arange(8, dtype=np.float32).reshape(2, 4)))


def nested():
    """Build a model with models as layers, whose own layers have equal names."""
    x = keras.Input((4,), name="x")
    rows = layers.BatchNormalization()(layers.Normalization()(x))
    for name in ("encoder", "decoder"):
        rows = keras.Sequential([layers.Dense(5, name="a"), layers.Dense(5, "relu", name="b")], name=name)(rows)
    return keras.Model(x, layers.Dense(2, name="y")(rows))


def save_nested(folder):
    """Train with the callback OrbaxCheckpoint, and save sharded weights."""
    keras.utils.set_random_seed(7)
    generator = np.random.default_rng(5)
    x = generator.normal(2, 3, (32, 4)).astype(np.float32)
    model = nested()
    model.compile("adam", "mse")
    saving = keras.callbacks.OrbaxCheckpoint(str(folder / "orbax"), max_to_keep=2, save_on_background=False)
    model.fit(x, x[:, :2] ** 2, epochs=3, verbose=0, callbacks=[saving])
    model.save_weights(folder / "model.weights.json", max_shard_size=1e-6)
    return {"serving_default": [({"x": x[:5]}, {"y": np.asarray(model(x[:5]))})]}


class Scale(layers.Layer):
    """Not registered with Keras, as most people's layers."""

    def __init__(self, by=1.0, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def call(self, x):
        return x * self.by

    def get_config(self):
        return {**super().get_config(), "by": self.by}


@keras.saving.register_keras_serializable("strangers")
def swish_squared(x):
    return x * x * keras.ops.sigmoid(x)


def save_own_classes(folder):
    keras.utils.set_random_seed(7)
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(2, activation=swish_squared, name="y")(Scale(3.0)(x)))
    model.save(folder / "model.keras")
    rows = np.random.default_rng(5).normal(0, 2, (5, 4)).astype(np.float32)
    return {"serving_default": [({"x": rows}, {"y": np.asarray(model(rows))})]}


def save_upsampling(folder):
    """Save a model that takes images of any size. Keras traces its UpSampling2D only with a fixed size."""
    keras.utils.set_random_seed(7)
    image = keras.Input((None, None, 1), name="image")
    small = layers.Conv2D(3, 3, strides=2, padding="same", activation="relu")(image)
    large = layers.UpSampling2D(interpolation="bilinear")(small)
    model = keras.Model(image, layers.Conv2D(1, 1, name="mask")(large))
    model.save(folder / "model.keras")
    images = np.random.default_rng(5).normal(0, 1, (3, 8, 8, 1)).astype(np.float32)
    return {"serving_default": [({"image": images}, {"mask": np.asarray(model(images))})]}
