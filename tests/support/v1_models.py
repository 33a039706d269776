"""SavedModels written by TensorFlow 1's builder, with all features that TF2's lacks."""

from pathlib import Path

import tensorflow as tf

v1 = tf.compat.v1


def save_vocabulary(path: Path, scratch: Path, *, legacy: bool) -> Path:
    """Save a table filled from an asset: `words` [None] string -> `ids` int64, `lengths` int32.

    There are two tag sets: {serve}, and {serve, gpu}, whose table lacks the word "beta". With `legacy`, the initialiser
    is at TensorFlow 1.0's place (legacy_init_op) instead of 1.15's (main_op).
    """
    builder = v1.saved_model.Builder(str(path))
    for index, words in enumerate((["alpha", "beta"], ["alpha"])):
        vocabulary = scratch / f"vocabulary-{index}.txt"
        vocabulary.write_text("\n".join(words))
        with tf.Graph().as_default(), v1.Session() as session:
            _add_vocabulary(builder, session, str(vocabulary), legacy=legacy, first=index == 0)
    builder.save()
    return path


def delete_vocabularies(scratch: Path) -> None:
    """Delete the original files of the assets."""
    for original in scratch.glob("vocabulary-*.txt"):
        original.unlink()


def _add_vocabulary(
    builder: "tf.compat.v1.saved_model.Builder",
    session: "tf.compat.v1.Session",
    vocabulary: str,
    *,
    legacy: bool,
    first: bool,
) -> None:
    words = v1.placeholder(tf.string, [None], "words")
    asset = tf.constant(vocabulary, name="vocabulary")
    table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            asset, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        ),
        -1,
    )
    scale = v1.get_variable("scale", initializer=tf.constant(10, tf.int64), use_resource=not legacy)
    ids = tf.multiply(table.lookup(words), scale, name="ids")
    session.run([v1.global_variables_initializer(), v1.tables_initializer()])
    predict = v1.saved_model.signature_def_utils.predict_signature_def
    signatures = {
        "serving_default": predict({"words": words}, {"ids": ids}),
        "lengths": predict({"words": words}, {"lengths": tf.strings.length(words)}),
    }
    init = tf.group(v1.tables_initializer(), name="init_tables")
    if not first:
        builder.add_meta_graph(["serve", "gpu"], signatures, _assets(), main_op=init)
    elif legacy:
        tags = ["serve"]
        builder.add_meta_graph_and_variables(session, tags, signatures, _assets(), legacy_init_op=init)
    else:
        builder.add_meta_graph_and_variables(session, ["serve"], signatures, _assets(), main_op=init)


def _assets() -> list[tf.Tensor]:
    assets: list[tf.Tensor] = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
    return assets


def save_counter(path: Path) -> Path:
    """Save a reference variable: `incr_counter` [] -> `output` counts up, like TensorFlow Serving's counter."""
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.placeholder(tf.float32, [], "step")
        counter = v1.get_variable("counter", initializer=0.0, use_resource=False)
        signatures = {
            name: v1.saved_model.signature_def_utils.predict_signature_def({"step": step}, {"output": output})
            for name, output in (
                ("serving_default", v1.assign_add(counter, step)),
                ("reset_counter", v1.assign(counter, step * 0)),
            )
        }
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save(as_text=True)
    return path


def save_features(path: Path) -> Path:
    """Save `examples`, serialized tf.Examples with a float `x` of two and an optional string `name`.

    The outputs are `sum` and `names`.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        examples = v1.placeholder(tf.string, [None], "examples")
        parsed = tf.io.parse_example(
            examples,
            {
                "x": tf.io.FixedLenFeature([2], tf.float32),
                "name": tf.io.FixedLenFeature([1], tf.string, default_value="nobody"),
                "tags": tf.io.VarLenFeature(tf.string),
            },
        )
        outputs = {
            "sum": tf.reduce_sum(parsed["x"], axis=1),
            "names": parsed["name"],
            "tags": tf.sparse.to_dense(parsed["tags"], b"-"),
        }
        signature = v1.saved_model.signature_def_utils.predict_signature_def({"examples": examples}, outputs)
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    return path


def set_default(path: Path, signature: str, **defaults: object) -> Path:
    """Set defaults of a saved signature's inputs (SignatureDef.defaults)."""
    from tensorflow.core.protobuf import saved_model_pb2

    file = path / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    definition = saved.meta_graphs[0].signature_def[signature]
    for name, value in defaults.items():
        definition.defaults[name].CopyFrom(tf.make_tensor_proto(value))
    file.write_bytes(saved.SerializeToString())
    return path


def save_unassigned(path: Path, unassigned: str = "serving_default", *assigned: str) -> Path:
    """Save x + bias as y in the signature `unassigned`, and x + kept as y in those of `assigned`.

    The checkpoint lacks the variable `bias`, and there is no initialiser.
    """
    builder = v1.saved_model.Builder(str(path))
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 1], "x")
        bias, kept = (v1.get_variable(name, [1]) for name in ("bias", "kept"))
        session.run(v1.global_variables_initializer())
        added = {unassigned: bias, **dict.fromkeys(assigned, kept)}
        predict = v1.saved_model.predict_signature_def
        signatures = {name: predict({"x": x}, {"y": x + variable}) for name, variable in added.items()}
        saver = v1.train.Saver([kept])
        builder.add_meta_graph_and_variables(session, ["serve"], signatures, saver=saver)
    builder.save()
    return path
