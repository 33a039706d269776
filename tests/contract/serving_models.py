"""The models of the contract tests: a copy of TensorFlow Serving's half_plus_two, and a model with every dtype."""

from pathlib import Path

import tensorflow as tf

tf1 = tf.compat.v1

DTYPES = (
    tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
    tf.bool, tf.string, tf.complex64, tf.complex128, tf.float16, tf.bfloat16,
)  # fmt: skip


def save_half_plus_two(path: Path, plus: float = 2.0) -> Path:
    """Save the model that servables/tensorflow/testdata/saved_model_half_plus_two.py builds.

    It is the v1 model, with `x` and `x2` in tf.Examples. `serving_default` predicts y = x / 2 + `plus`.
    `classify_x_to_y` and `regress_x_to_y` return y. `regress_x_to_y2` and `regress_x2_to_y3` add 3 instead of 2.
    `regress_x2_to_y3` takes x2 as a tensor. `strange` has an unknown method name.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        half = tf1.get_variable("a", initializer=0.5, use_resource=True)
        added = tf1.get_variable("b", initializer=plus, use_resource=True)
        more = tf1.get_variable("c", initializer=3.0, use_resource=True)
        examples = tf1.placeholder(tf.string, [None], "tf_example")
        zero = tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0])
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32), "x2": zero})
        x, x2 = tf.identity(parsed["x"], "x"), tf.identity(parsed["x2"], "x2")
        y = tf.add(half * x, added, "y")
        y2 = tf.add(half * x, more, "y2")
        y3 = tf.add(half * x2, more, "y3")
        session.run(tf1.global_variables_initializer())
        builder = tf1.saved_model.Builder(str(path))
        signatures = {
            "serving_default": _signature({"x": x}, {"y": y}, "predict"),
            "classify_x_to_y": _signature({"inputs": examples}, {"scores": y}, "classify"),
            "classify_both": _signature(
                {"inputs": examples}, {"scores": y, "classes": tf.as_string(y, precision=1)}, "classify"
            ),
            "regress_x_to_y": _signature({"inputs": examples}, {"outputs": y}, "regress"),
            "regress_x_to_y2": _signature({"inputs": examples}, {"outputs": y2}, "regress"),
            "regress_x2_to_y3": _signature({"inputs": x2}, {"outputs": y3}, "regress"),
            "strange": _signature({"inputs": examples}, {"outputs": y}, "strange"),
        }
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    return path


def save_kinds(path: Path) -> Path:
    """Save a model with a signature for each kind of tensor.

    `echo_DTYPE`: x -> y for every dtype; `two`: a, b -> sum, difference; `scalar`: x [?] -> total (); `uneven`; `sums`:
    x [?, ?] -> sum [?]; `text`.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        signatures = {f"echo_{dtype.name}": _echo(dtype) for dtype in DTYPES}
        a, b = (tf1.placeholder(tf.float32, [None], name) for name in ("a", "b"))
        signatures["two"] = _signature({"a": a, "b": b}, {"sum": a + b, "difference": a - b}, "predict")
        values = tf1.placeholder(tf.float32, [None], "values")
        signatures["scalar"] = _signature({"x": values}, {"total": tf.reduce_sum(values)}, "predict")
        signatures["uneven"] = _signature(
            {"x": values}, {"same": tf.identity(values), "twice": tf.tile(values, [2])}, "predict"
        )
        rows = tf1.placeholder(tf.float32, [None, None], "rows")
        signatures["sums"] = _signature({"x": rows}, {"sum": tf.reduce_sum(rows, 1)}, "predict")
        text = tf1.placeholder(tf.string, [None], "text")
        both = {"plain": tf.identity(text), "raw_bytes": tf.identity(text)}
        signatures["text"] = _signature({"text": text}, both, "predict")
        image = tf1.placeholder(tf.float32, [None, 2, 2], "image")
        signatures["serving_default"] = _signature({"image": image}, {"mean": tf.reduce_mean(image, [1, 2])}, "predict")
        builder = tf1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    return path


def _echo(dtype: tf.DType) -> object:
    x = tf1.placeholder(dtype, [None], f"x_{dtype.name}")
    return _signature({"x": x}, {"y": tf.identity(x)}, "predict")


def _signature(inputs: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor], method: str) -> object:
    info = tf1.saved_model.build_tensor_info
    return tf1.saved_model.signature_def_utils.build_signature_def(
        {name: info(tensor) for name, tensor in inputs.items()},
        {name: info(tensor) for name, tensor in outputs.items()},
        f"tensorflow/serving/{method}",
    )
