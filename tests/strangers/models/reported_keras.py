"""Keras models of public reports: answers that changed between training, saving, export and serving."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

RANDOM = np.random.default_rng(3)
ROWS = RANDOM.normal(40.0, 15.0, (5, 6)).astype(np.float32)
LABELS = RANDOM.normal(-300.0, 70.0, (40, 1)).astype(np.float32)


def settle(model, seed=11):
    generator = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(np.asarray(weight) + generator.normal(0, 0.3, weight.shape))
    return model


def save_all(folder, model, inputs, names):
    """Save as .keras, .weights.h5 and TF2 checkpoint. Return the outputs of the model in memory."""
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    if keras.backend.backend() == "tensorflow":
        tf.train.Checkpoint(model=model).save(str(folder / "checkpoints" / "ckpt"))
    return {"serving_default": [ask(model, one, names) for one in inputs]}


def ask(model, inputs, names):
    tensors = {name: keras.ops.convert_to_tensor(value) for name, value in inputs.items()}
    answers = model(tensors if isinstance(model.input, dict) else next(iter(tensors.values())), training=False)
    answers = answers if isinstance(answers, (list, tuple, dict)) else [answers]
    values = [answers[name] for name in names] if isinstance(answers, dict) else answers
    return inputs, {name: keras.ops.convert_to_numpy(value) for name, value in zip(names, values, strict=True)}


def denormalized(adapted=False):
    """Normalize measurements, and turn the prediction back into the units of the labels."""
    before, after = layers.Normalization(), layers.Normalization(axis=None, invert=True, name="orp")
    before.build((None, 6))
    after.build((None, 1))
    if adapted:
        before.adapt(ROWS)
        after.adapt(LABELS)
    x = keras.Input((6,), name="x")
    return keras.Model(x, after(layers.Dense(1)(layers.Dense(8, "relu")(before(x)))))


def save_denormalized(folder):
    return save_all(folder, settle(denormalized(adapted=True)), [{"x": ROWS}], ["orp"])


def padded_words():
    """Look words up in a table of pretrained vectors: row 0 pads, and row 1 is for unknown words."""
    words = keras.Input((None,), dtype="string", name="words")
    ids = layers.StringLookup(vocabulary=["cat", "sat", "mat", "sea"], mask_token="")(words)
    vectors = layers.Embedding(6, 4, mask_zero=True, trainable=False, name="vectors")
    x = layers.Bidirectional(layers.GRU(3))(vectors(ids))
    return keras.Model(words, layers.Dense(2, "softmax", name="scores")(x))


def save_padded_words(folder):
    model = settle(padded_words())
    table = np.random.default_rng(2).normal(0, 1, (6, 4)).astype(np.float32)
    table[:2] = 0
    model.get_layer("vectors").set_weights([table])
    text = [["cat", "sat", ""], ["dog", "", ""], ["mat", "dog", "sea"], ["", "", ""]]
    return save_all(folder, model, [{"words": np.array(text, object)}, {"words": np.array([["sea"]], object)}],
                    ["scores"])  # fmt: skip


def rms_scaled():
    x = keras.Input((6,), name="x")
    y = layers.LayerNormalization(rms_scaling=True)(layers.Dense(8)(x))
    return keras.Model(x, layers.Dense(3, name="y")(y))


def save_rms_scaled(folder):
    return save_all(folder, settle(rms_scaled()), [{"x": ROWS}], ["y"])


def tokens():
    """Take a dictionary of integers, as language models of KerasHub do, and return a dictionary."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    mask = keras.Input((None,), dtype="int32", name="padding_mask")
    x = layers.Embedding(20, 4, name="words")(ids) * keras.ops.cast(mask, "float32")[..., None]
    hidden = layers.Dense(4, name="hidden")(x)
    return keras.Model({"token_ids": ids, "padding_mask": mask}, {"pooled": hidden[:, 0], "logits": hidden})


def save_tokens(folder):
    requests = []
    for length in (7, 3):
        ids = np.random.default_rng(length).integers(1, 20, (4, length)).astype(np.int32)
        requests.append({"token_ids": ids, "padding_mask": (ids > 5).astype(np.int32)})
    return save_all(folder, settle(tokens()), requests, ["pooled", "logits"])


@keras.saving.register_keras_serializable("reported")
class TwoOutputs(layers.Layer):
    def call(self, x):
        return x + 1, x - 1

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype), keras.KerasTensor(x.shape, x.dtype)


def two_outputs():
    x = keras.Input((2,), dtype="int32", name="x")
    return keras.Model(x, TwoOutputs(name="both")(x))


def save_two_outputs(folder):
    x = np.arange(10, dtype=np.int32).reshape(5, 2)
    model = two_outputs()
    model.save(folder / "model.keras")
    model.export(str(folder / "saved"), verbose=False)
    named = ask(model, {"x": x}, ["output_0", "output_1"])
    return {"serving_default": [named]}


def save_series(folder):
    """Save a network over a series of any length in any batch, on the JAX backend."""
    series = keras.Input((None, 1), name="series")
    x = layers.Dense(6, "relu")(series)
    x = layers.Conv1D(6, 3, padding="same", activation="relu")(x)
    model = settle(keras.Model(series, layers.Dense(1, name="next")(layers.LSTM(4, return_sequences=True)(x))))
    requests = [{"series": np.random.default_rng(n).normal(0, 1, (3, n, 1)).astype(np.float32)} for n in (5, 8, 2)]
    return save_all(folder, model, requests, ["next"])


def save_volumes(folder):
    """Write an endpoint of float64 with ExportArchive: 3-D convolutions on the JAX backend."""
    volume = keras.Input((3, 8, 8, 1), name="volume")
    x = layers.Conv3D(4, 3, padding="same", activation="relu")(volume)
    x = layers.BatchNormalization()(x)
    x = layers.Conv3D(2, (1, 3, 3), strides=(1, 2, 2), activation="sigmoid")(layers.Dropout(0.3)(x))
    model = settle(keras.Model(volume, layers.GlobalAveragePooling3D()(x)))
    archive = keras.export.ExportArchive()
    archive.track(model)
    spec = keras.InputSpec(shape=(None, 3, 8, 8, 1), dtype="float64", name="frames")
    archive.add_endpoint("serve", lambda frames: model.call(frames, training=False), input_signature=[spec])
    archive.write_out(str(folder / "saved"), verbose=False)
    frames = np.random.default_rng(4).normal(0, 1, (4, 3, 8, 8, 1))
    answer = model(frames.astype(np.float32), training=False)
    return {"serving_default": [({"frames": frames}, {"output_0": keras.ops.convert_to_numpy(answer)})]}


def save_learning_phase(folder):
    """Write a SavedModel of TensorFlow 1 in training mode: K.set_learning_phase(1) before the model is built."""
    v1 = tf.compat.v1
    tf_keras = v1.keras
    with tf.Graph().as_default(), v1.Session() as session:
        tf_keras.backend.set_session(session)
        tf_keras.backend.set_learning_phase(1)
        image = tf_keras.Input((8, 8, 3), name="the_input")
        x = tf_keras.layers.Conv2D(4, 3)(image)
        x = tf_keras.layers.BatchNormalization()(x)
        x = tf_keras.layers.Dropout(0.5)(tf_keras.layers.Flatten()(x))
        model = tf_keras.Model(image, tf_keras.layers.Dense(3, "softmax", name="out")(x))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / "saved"), {"input_image": model.input}, {"out": model.output})
    x = np.zeros((1, 8, 8, 3), np.float32)
    return {"serving_default": [({"input_image": x}, {"out": np.zeros((1, 3), np.float32)})]}
