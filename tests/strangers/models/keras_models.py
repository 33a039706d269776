"""Keras 3 models other than image classifiers: subclassed, shared layers, sequences, text, several dtypes."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

ROWS = np.random.default_rng(3).normal(2.0, 1.5, (5, 6)).astype(np.float32)
STEPS = np.random.default_rng(4).normal(0.3, 1.2, (5, 7, 4)).astype(np.float32)


@keras.saving.register_keras_serializable("strangers")
class Residual(keras.Model):
    """A subclassed model: a custom call with batch norm and dropout, and a dictionary of outputs."""

    def __init__(self, units=8, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.first = layers.Dense(units)
        self.norm = layers.BatchNormalization()
        self.second = layers.Dense(units)
        self.dropout = layers.Dropout(0.5)
        self.head = layers.Dense(3)

    def call(self, x, training=None):
        x = self.first(x)
        x = x + self.dropout(self.second(keras.ops.relu(self.norm(x, training=training))), training=training)
        return {"logits": self.head(x), "norm": keras.ops.norm(x, axis=-1)}

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def residual():
    return Residual()


def shared():
    """Build a siamese network: one encoder for two inputs, and three outputs."""
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    encoder = keras.Sequential([layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(4)], name="encoder")
    a, b = encoder(left), encoder(right)
    distance = layers.Dense(1, name="distance")(layers.Subtract()([a, b]))
    close = layers.Dense(1, "sigmoid", name="close")(layers.Concatenate()([a, b]))
    return keras.Model([left, right], [distance, close, a])


def bidirectional():
    steps = keras.Input((None, 4), name="steps")
    x = layers.Masking(0.0)(steps)
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True, dropout=0.2))(x)
    return keras.Model(steps, layers.Bidirectional(layers.GRU(3), name="summary")(x))


def text():
    """Build a model from sentences to scores, with the vocabulary inside."""
    sentence = keras.Input((), dtype="string", name="sentence")
    vocabulary = ["the", "cat", "sat", "on", "mat", "grüße"]
    x = layers.TextVectorization(vocabulary=vocabulary, output_sequence_length=6)(sentence)
    x = layers.Embedding(len(vocabulary) + 2, 5, mask_zero=True)(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(sentence, layers.Dense(3, "softmax", name="scores")(x))


def tabular():
    """Build a model of a table's strings and numbers."""
    colour = keras.Input((1,), dtype="string", name="colour")
    size = keras.Input((6,), name="size")
    year = keras.Input((1,), dtype="int64", name="year")
    one_hot = layers.StringLookup(vocabulary=["red", "green"], output_mode="one_hot")(colour)
    norm = layers.Normalization(mean=[2.0] * 6, variance=[2.2] * 6)(size)
    bucket = layers.CategoryEncoding(4, output_mode="one_hot")(
        layers.IntegerLookup(vocabulary=[1999, 2000, 2001])(year)
    )
    x = layers.Concatenate()([one_hot, norm, bucket])
    return keras.Model({"colour": colour, "size": size, "year": year}, {"price": layers.Dense(1)(x), "hot": one_hot})


def mixed(policy):
    x = keras.Input((6,), name="x")
    y = layers.Dense(16, "relu", dtype=policy)(x)
    y = layers.BatchNormalization(dtype=policy)(y)
    return keras.Model(x, layers.Dense(3, "softmax", dtype="float32", name="scores")(y))


def half(dtype):
    """Build a model that computes and returns `dtype`."""
    x = keras.Input((6,), name="x", dtype=dtype)
    y = layers.Dense(16, "relu", dtype=dtype)(x)
    return keras.Model(x, layers.Dense(3, dtype=dtype, name="scores")(y))


def odd_outputs():
    """Build a model with unusual outputs, without batch norm and softmax.

    The outputs are integers, booleans and an output without elements. Their names are not identifiers.
    """
    x = keras.Input((6,), name="x")
    y = layers.Dense(4)(x)
    best = keras.ops.argmax(y, -1)
    quantised = keras.ops.cast(keras.ops.clip(keras.ops.round(y * 20), -128, 127), "int8")
    return keras.Model(x, {"class-id": best, "int8": quantised, "positive?": y > 0, "none": y[:, :0]})


def attention():
    """Build a decoder-like block: attention, layer norm, positions, and a causal mask."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.Embedding(20, 8)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    return keras.Model(ids, layers.Dense(20, name="next")(x))


def settle(model):
    generator = np.random.default_rng(11)
    for weight in model.trainable_weights:
        weight.assign(np.asarray(weight).astype(np.float32) + generator.normal(0, 0.3, weight.shape))
    for weight in model.non_trainable_weights:
        if weight.name.startswith("moving_"):
            weight.assign(np.exp(generator.normal(0.5, 0.4, weight.shape)))
    return model


def save_as(folder, model, inputs, names=None):
    """Save model.keras, model.weights.h5 and checkpoints of a model, and return the outputs of predict."""
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    tf.train.Checkpoint(model=model).save(str(folder / "checkpoints" / "ckpt"))
    # Compile the call like predict. predict itself converts narrower types to float32.
    tensors = {name: tf.constant(value.tolist() if value.dtype == object else value) for name, value in inputs.items()}
    argument = (
        tensors
        if isinstance(model.input, dict)
        else list(tensors.values())
        if len(tensors) > 1
        else tensors[min(tensors)]
    )
    answers = tf.function(lambda x: model(x, training=False))(argument)
    if not isinstance(answers, dict):
        names = names or model.output_names
        answers = dict(zip(names, answers if isinstance(answers, (list, tuple)) else [answers]))
    return {"serving_default": [(inputs, {name: value.numpy() for name, value in answers.items()})]}


def save_residual(folder):
    keras.utils.set_random_seed(7)
    model = residual()
    model(ROWS)
    settle(model)
    tf.train.Checkpoint(model=model, step=tf.Variable(3)).save(str(folder / "checkpoints" / "ckpt"))
    model.save(folder / "model.keras")
    answers = {name: value.numpy() for name, value in model(ROWS, training=False).items()}
    return {"serving_default": [({"x": ROWS}, answers)]}


def save_shared(folder):
    keras.utils.set_random_seed(7)
    return save_as(folder, settle(shared()), {"left": ROWS, "right": ROWS[::-1].copy()})


def save_bidirectional(folder):
    keras.utils.set_random_seed(7)
    steps = STEPS.copy()
    steps[1, 4:] = 0
    return save_as(folder, settle(bidirectional()), {"steps": steps})


def save_text(folder):
    keras.utils.set_random_seed(7)
    sentences = np.array(["The cat sat.", "on the MAT", "grüße", "", "a b c d e f g h the"], object)
    return save_as(folder, settle(text()), {"sentence": np.array([one.encode() for one in sentences], object)})


def save_tabular(folder):
    keras.utils.set_random_seed(7)
    colours = np.array([[b"red"], [b"green"], [b"blue"], [b""], [b"red"]], object)
    years = np.array([[1999], [2001], [1], [2000], [2000]], np.int64)
    return save_as(folder, settle(tabular()), {"colour": colours, "size": ROWS, "year": years})


def save_mixed(folder, policy):
    keras.utils.set_random_seed(7)
    return save_as(folder, settle(mixed(policy)), {"x": ROWS})


def save_half(folder, dtype):
    keras.utils.set_random_seed(7)
    x = tf.cast(ROWS, dtype).numpy()
    return save_as(folder, settle(half(dtype)), {"x": x})


def save_odd_outputs(folder):
    keras.utils.set_random_seed(7)
    return save_as(folder, settle(odd_outputs()), {"x": ROWS})


def save_attention(folder):
    keras.utils.set_random_seed(7)
    ids = np.random.default_rng(5).integers(1, 20, (5, 9)).astype(np.int32)
    return save_as(folder, settle(attention()), {"ids": ids})
