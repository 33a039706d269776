"""SavedModels of other programs: tf.Module, Keras 2, TensorFlow 1; strings, ragged tensors, scalars, empty outputs."""

import os

import numpy as np
import tensorflow as tf

ROWS = np.random.default_rng(3).normal(0.3, 1.2, (5, 6)).astype(np.float32)


class Statistics(tf.Module):
    """A module with several signatures, several dtypes, odd names, an empty output and one without rows."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(np.random.default_rng(1).normal(0, 1, (6, 3)).astype(np.float32))
        words = tf.lookup.KeyValueTensorInitializer(["red", "green", "blå"], tf.constant([1, 2, 3], tf.int64))
        self.table = tf.lookup.StaticHashTable(words, -1)

    @tf.function(input_signature=[
        tf.TensorSpec([None, 6], tf.float32, "x"), tf.TensorSpec([None], tf.string, "colour"),
        tf.TensorSpec([None, 2], tf.bool, "flags"),
    ])  # fmt: skip
    def mixed(self, x, colour, flags):
        found = self.table.lookup(colour)
        return {
            "score": tf.linalg.matvec(x, self.kernel[:, 0]) * tf.cast(found, tf.float32),
            "id": found,
            "upper": tf.strings.upper(colour),
            "flags/any": tf.reduce_any(flags, 1),
            "x-1.half": tf.cast(x, tf.float16),
            "nothing": x[:, :0],
            "bytes_of": tf.io.decode_raw(tf.strings.substr(colour + "   ", 0, 3), tf.uint8),
        }

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, "a"), tf.TensorSpec([], tf.int32, "n")])
    def scalars(self, a, n):
        return {"power": tf.pow(a, tf.cast(n, tf.float32)), "range": tf.range(n), "constant": tf.constant(3, tf.int64)}

    @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.float32, "x")])
    def double(self, x):
        wide = tf.cast(x, tf.float64)
        return {"sum": tf.reduce_sum(wide, 1), "int8": tf.cast(tf.clip_by_value(x * 40, -128, 127), tf.int8),
                "uint64": tf.cast(tf.abs(x) * 1000, tf.uint64) + (1 << 60)}  # fmt: skip


def save_module(folder):
    module = Statistics()
    signatures = {"serving_default": module.mixed, "scalars": module.scalars, "double": module.double}
    tf.saved_model.save(module, str(folder / "saved"), signatures=signatures)
    colour = np.array([b"red", "blå".encode(), b"green", b"", b"violet"], object)
    flags = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [0, 0]], bool)
    mixed = {"x": ROWS, "colour": colour, "flags": flags}
    return {
        "serving_default": [(mixed, {name: value.numpy() for name, value in module.mixed(**mixed).items()})],
        "double": [({"x": ROWS}, {name: value.numpy() for name, value in module.double(ROWS).items()})],
    }


def save_scalars(folder):
    module = Statistics()
    tf.saved_model.save(module, str(folder / "saved"), signatures=module.scalars)
    exchanges = []
    for a, n in ((1.5, 3), (0.0, 0), (-2.0, 5)):
        inputs = {"a": np.array(a, np.float32), "n": np.array(n, np.int32)}
        exchanges.append((inputs, {name: value.numpy() for name, value in module.scalars(**inputs).items()}))
    return {"serving_default": exchanges}


class Complex(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, "signal")])
    def __call__(self, signal):
        return {"spectrum": tf.signal.rfft(signal)}


def save_complex(folder):
    module = Complex()
    tf.saved_model.save(module, str(folder / "saved"), signatures=module.__call__)
    signal = np.random.default_rng(2).normal(0, 1, (5, 8)).astype(np.float32)
    return {"serving_default": [({"signal": signal}, {"spectrum": module(signal)["spectrum"].numpy()})]}


class Bags(tf.Module):
    """A module whose input is a RaggedTensor of word ids per row."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(1).normal(0, 1, (20, 4)).astype(np.float32))

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def __call__(self, ids):
        return {"mean": tf.reduce_sum(tf.ragged.map_flat_values(lambda one: tf.gather(self.table, one), ids), 1)}


def save_ragged(folder):
    """Save a module served as values and row splits, with TensorFlow's names for the parts of the input `ids`."""
    module = Bags()
    tf.saved_model.save(module, str(folder / "saved"), signatures=module.__call__)
    rows = [[1, 2, 3], [], [19], [4, 4], [7, 0, 5, 6]]
    exchanges = []
    for some in (rows, rows[:1], rows[1:3]):
        ids = tf.ragged.constant(some, tf.int32)
        inputs = {"ids": ids.flat_values.numpy(), "ids_1": ids.row_splits.numpy()}
        exchanges.append((inputs, {"mean": module(ids)["mean"].numpy()}))
    return {"serving_default": exchanges}


def save_simple(folder):
    """Save with tf.saved_model.simple_save of TensorFlow 1: a feature column of words, and reference variables."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None, 2], "words")
        x = v1.placeholder(tf.float32, [None, 6], "x")
        buckets = tf.strings.to_hash_bucket_fast(words, 10)
        table = v1.get_variable("table", [10, 4], initializer=v1.random_normal_initializer(seed=1), use_resource=False)
        kernel = v1.get_variable("k", [10, 3], initializer=v1.random_normal_initializer(seed=2), use_resource=False)
        both = tf.concat([tf.reduce_sum(tf.gather(table, buckets), 1), x], 1)
        scores = tf.nn.softmax(tf.matmul(both, kernel))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(
            session, str(folder / "saved"), {"words": words, "x": x}, {"scores": scores, "best": tf.argmax(scores, 1)}
        )
        strings = np.array([[b"a", b"b"], [b"", b"zz"], [b"c", b"a"], [b"a", b"a"], [b"x", b"y"]], object)
        answer = session.run({"scores": scores, "best": tf.argmax(scores, 1)}, {words: strings, x: ROWS})
    return {"serving_default": [({"words": strings, "x": ROWS}, answer)]}


class Pooled(tf.Module):
    """A module whose graph averages images of any size. Its signature has one size."""

    @tf.function(input_signature=[tf.TensorSpec([None, 16, 16, 3], tf.float32, "x")])
    def __call__(self, x):
        return {"y": tf.reduce_mean(x, [1, 2])}


def save_pooled(folder):
    module = Pooled()
    tf.saved_model.save(module, str(folder / "saved"), signatures=module.__call__)
    x = np.random.default_rng(4).normal(0, 1, (5, 16, 16, 3)).astype(np.float32)
    return {"serving_default": [({"x": x}, {"y": module(x)["y"].numpy()})]}


def save_keras_2(folder, family):
    """Save a family that Keras 3 lacks, with its preprocessing inside, as SavedModel, .h5 and .keras of Keras 2."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tf_keras

    from tests.strangers.models import photos

    tf_keras.utils.set_random_seed(7)
    make = getattr(tf_keras.applications, family)
    model = make(weights=None, input_tensor=tf_keras.Input((32, 32, 3), name="image"), classes=10)
    _settle(tf_keras, model, photos.draw(16, 32, 32, seed=1).astype(np.float32))
    model.save(str(folder / "saved"), save_format="tf")
    model.save(str(folder / "model.h5"))
    model.save(str(folder / "model.keras"))
    pictures = photos.draw(4, 32, 32, seed=2)
    files = np.concatenate([photos.encode(pictures[:2], "PNG"), photos.encode(photos.draw(2, 48, 39, 3), "PNG")])
    (output,) = model.output_names
    tensors = pictures.astype(np.float32)
    return {
        "serving_default": [({"image": tensors}, {output: model.predict(tensors, verbose=0)})],
        "photo": [({"image_bytes": files}, {output: model.predict(photos.read(files, 32, 32), verbose=0)})],
    }


def _settle(keras, model, images):
    """Set statistics and weights that differ from those of a new model."""
    generator = np.random.default_rng(11)
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    for norm in norms:
        norm.gamma.assign(np.exp(generator.normal(0, 0.2, norm.gamma.shape)))
        norm.beta.assign(generator.normal(0, 0.2, norm.beta.shape))
        norm.momentum, momentum = 0.0, norm.momentum
        norm.usual_momentum = momentum
    model(images, training=True)
    for norm in norms:
        norm.momentum = norm.usual_momentum
    scores = [layer for layer in model.layers if layer.weights][-1]
    logits = model.predict(images, verbose=0)
    if logits.min() >= 0:  # RegNet has no softmax
        logits = np.log(logits)
    logits -= logits.mean(1, keepdims=True)
    kernel, bias = scores.get_weights()
    factor = 1.5 / logits.std(0).mean()
    scores.set_weights([kernel * factor, (bias - logits.mean(0)) * factor])
    answers = model.predict(images, verbose=0)
    assert answers.std(0).mean() > 0.03, answers.std(0)
