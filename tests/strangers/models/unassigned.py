"""SavedModels that TensorFlow loads and that then fail every request."""

import keras
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
ROWS = np.random.default_rng(4).normal(size=(3, 6)).astype("f")


class Holder(tf.Module):
    """A Keras model beside a list of its variables, as training scripts write it.

    TensorFlow does not see into the Keras model. The checkpoint restores copies, and the signature reads the originals.
    """

    def __init__(self, model):
        super().__init__()
        self.model, self.weights = model, model.variables

    @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.float32, name="x")])
    def serve(self, x):
        return {"y": self.model(x)}

    @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.float32, name="x")])
    def double(self, x):
        return {"twice": 2.0 * self.model(x)}


def save_copied_variables(folder):
    layers = [keras.layers.Dense(3, name="dense"), keras.layers.BatchNormalization(name="norm")]
    model = keras.Sequential([keras.Input((6,), name="x"), *layers], name="net")
    model.layers[1].set_weights([np.array(one) for one in ([1.0, 2, 3], [0.1, 0.2, 0.3], [4.0, 5, 6], [7.0, 8, 9])])
    holder = Holder(model)
    tf.saved_model.save(
        holder, str(folder / "saved"), signatures={"serving_default": holder.serve, "double": holder.double}
    )
    answer = model(ROWS).numpy()
    return {"serving_default": [({"x": ROWS}, {"y": answer})], "double": [({"x": ROWS}, {"twice": 2 * answer})]}


def save_table(folder):
    """Save a TensorFlow 1 graph without the initialiser of its table."""
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None])
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), 0, name="words")
        ids = table.lookup(words)
        v1.tables_initializer().run()
        v1.saved_model.simple_save(session, str(folder / "saved"), {"words": words}, {"ids": ids})
        answer = ids.eval({words: ["b", "a"]})
    return {"serving_default": [({"words": np.array([b"b", b"a"], object)}, {"ids": answer})]}


def save_without_bias(folder):
    """Save a TensorFlow 1 graph with a Saver that omits a variable, so that no file has its value."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 6])
        kernel, bias = (v1.get_variable(name, [6], use_resource=True) for name in ("kernel", "bias"))
        y = x * kernel + bias
        v1.global_variables_initializer().run()
        builder = v1.saved_model.Builder(str(folder / "saved"))
        signatures = {"serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": y})}
        builder.add_meta_graph_and_variables(session, ["serve"], signatures, saver=v1.train.Saver([kernel]))
        builder.save()
        return {"serving_default": [({"x": ROWS}, {"y": y.eval({x: ROWS})})]}
