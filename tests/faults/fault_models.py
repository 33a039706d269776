"""Models of the fault tests: `m` answers quickly, `slow` takes as long or as much memory as a request states."""

from pathlib import Path

import tensorflow as tf

from tests.support.saved_models import write_manifest

tf1 = tf.compat.v1
MAX_BATCH = 8


def save_main(path: Path, factor: float = 2.0) -> Path:
    """Save `m`: `serving_default` x (float [?, 2]) -> y = `factor` x; `add`; `sums`; `lookup`; `echo` of strings.

    `lookup` fails for an index outside 0..2. `wide` returns `count` numbers. `free` returns numbers of any shape.
    `convolve` takes images of 2 x 2 or more pixels.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, 2], "x")
        a, b = (tf1.placeholder(tf.float32, [None], name) for name in "ab")
        rows = tf1.placeholder(tf.float32, [None, None], "rows")
        index = tf1.placeholder(tf.int32, [None], "index")
        text = tf1.placeholder(tf.string, [None], "text")
        count = tf1.placeholder(tf.int64, [1], "count")
        free = tf1.placeholder(tf.float32, None, "free")
        image = tf1.placeholder(tf.float32, [None, None, None, 1], "image")
        convolved = tf.nn.conv2d(image, tf.ones([2, 2, 1, 1]), 1, "VALID", name="conv")
        signatures = {
            "serving_default": _signature({"x": x}, {"y": factor * x}),
            "add": _signature({"a": a, "b": b}, {"sum": a + b}),
            "sums": _signature({"x": rows}, {"sum": tf.reduce_sum(rows, 1)}),
            "lookup": _signature({"index": index}, {"value": tf.gather(tf.constant([10, 20, 30], tf.int64), index)}),
            "wide": _signature({"count": count}, {"wide": tf.fill(count, 0.5)}),
            "echo": _signature({"text": text}, {"same": tf.identity(text)}),
            "convolve": _signature({"image": image}, {"convolved": convolved}),
        }
        _save(path, session, {**signatures, "free": _signature({"x": free}, {"y": tf.identity(free)})})
    checked = {"batch_sizes": [1, 2, 4, MAX_BATCH], "rows_independent": True}
    write_manifest(path, signatures=dict.fromkeys(signatures.keys() - {"wide"}, checked))
    return path


def save_slow(path: Path) -> Path:
    """Save `slow`: `serving_default` counts to `steps` (int64 [?]), and `greedy` allocates `count` numbers.

    `until` writes to the file `path`. If that is a FIFO, it runs until another process reads it.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        steps = tf1.placeholder(tf.int64, [None], "steps")
        last = tf.reduce_max(steps)
        counted = tf.while_loop(lambda i: i < last, lambda i: (i + 1,), (tf.constant(0, tf.int64),))[0]
        count = tf1.placeholder(tf.int64, [1], "count")
        file = tf1.placeholder(tf.string, [], "path")
        with tf.control_dependencies([tf.io.write_file(file, "written")]):
            written = tf.identity(file)
        signatures = {
            "until": _signature({"path": file}, {"written": written}),
            "serving_default": _signature({"steps": steps}, {"counted": tf.fill(tf.shape(steps), counted)}),
            "greedy": _signature({"count": count}, {"sum": tf.reduce_sum(tf.random.uniform(count))}),
        }
        _save(path, session, signatures)
    # Without batching in the model, each request runs alone, so a queue forms behind a slow one.
    write_manifest(path, signatures={"serving_default": {"batch_sizes": [1], "rows_independent": True}})
    return path


def _save(path: Path, session: object, signatures: dict[str, object]) -> None:
    builder = tf1.saved_model.Builder(str(path))
    builder.add_meta_graph_and_variables(session, ["serve"], signatures)
    builder.save()


def _signature(inputs: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor]) -> object:
    return tf1.saved_model.signature_def_utils.predict_signature_def(inputs, outputs)
