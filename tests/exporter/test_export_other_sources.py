"""Tests that Keras files and existing SavedModels become versions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest, without_tried_sizes
from tests.exporter.served import serve

pytestmark = [
    pytest.mark.xdist_group(__name__),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
ROWS = np.random.default_rng(3).random((2, 3)).astype(np.float32)


def test_keras_file_becomes_a_version(export: Export, tmp_path: Path) -> None:
    model = builders.tiny()
    model.save(tmp_path / "tiny.keras")
    finished = export(tmp_path / "tiny.keras", tmp_path / "tiny")
    assert finished.code == 0, finished.err
    manifest = read_manifest(tmp_path / "tiny/1")
    provenance = [{"kind": "parameters", "count": 4}]
    source = {"kind": "keras", "name": "tiny.keras", "step": None, "builder": None, "provenance": provenance}
    assert manifest["source"] == source
    assert manifest["parity"]["atol"] == 1e-5
    np.testing.assert_allclose(serve(tmp_path / "tiny/1", features=ROWS)["scores"], model(ROWS).numpy(), atol=1e-6)


def test_keras_weights_go_into_the_builders_model(export: Export, tmp_path: Path) -> None:
    model = builders.tiny()
    model.save_weights(tmp_path / "tiny.weights.h5")
    built = export(tmp_path / "tiny.weights.h5", tmp_path / "tiny", "--model", "tests.exporter.builders:tiny")
    assert built.code == 0, built.err
    np.testing.assert_allclose(serve(tmp_path / "tiny/1", features=ROWS)["scores"], model(ROWS).numpy(), atol=1e-6)


def test_keras_file_computes_in_float32_on_request(export: Export, tmp_path: Path) -> None:
    builders.tiny(dtype="mixed_bfloat16").save(tmp_path / "tiny.keras")
    finished = export(tmp_path / "tiny.keras", tmp_path / "tiny", "--compute-dtype", "float32")
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "tiny/1")["compute_dtype"] == "float32"


def test_dictionary_keys_name_inputs_and_outputs(export: Export, tmp_path: Path) -> None:
    builders.named_parts().save(tmp_path / "parts.keras")
    finished = export(tmp_path / "parts.keras", tmp_path / "parts")
    assert finished.code == 0, finished.err
    signature = read_manifest(tmp_path / "parts/1")["signatures"]["serving_default"]
    assert without_tried_sizes(signature["inputs"]) == {
        "ids": {"dtype": "int32", "shape": [None, 5]},
        "weight": {"dtype": "float32", "shape": [None, 1]},
    }
    assert set(signature["outputs"]) == {"score", "embedding"}


def test_inputs_and_outputs_are_renamed_in_order(export: Export, tmp_path: Path) -> None:
    builders.tiny().save(tmp_path / "tiny.keras")
    names = ("--input", "x", "--output", "y", "--signature-name", "predict")
    assert export(tmp_path / "tiny.keras", tmp_path / "tiny", *names).code == 0
    signatures = read_manifest(tmp_path / "tiny/1")["signatures"]
    assert set(signatures["predict"]["inputs"]) == {"x"}
    assert set(signatures["predict"]["outputs"]) == {"y"}
    finished = export(tmp_path / "tiny.keras", tmp_path / "tiny", "--output", "y", "--output", "z")
    assert (finished.code, "the model has 1 output(s)" in finished.err) == (2, True)


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (builders.named_parts, ("--input", "x", "--input", "x"), "several inputs have the name 'x'"),
        (builders.named_parts, ("--output", "y", "--output", "y"), "several outputs have the name 'y'"),
        (builders.colliding, (), "several outputs have the name 'a_b'. Name each with --output NAME"),
        (
            builders.tiny,
            ("--input", "x:int32[batch,3]"),
            "--input describes x: int32[?, 3], but the model takes x: float32",
        ),
        (builders.tiny, ("--input", "x:float32[batch,4]"), "--input describes x: float32[?, 4]"),
        (builders.tiny, ("--input", "x:float32[3]"), "--input describes x: float32[3]"),
        (builders.tiny, ("--input", "x:float31[batch,3]"), "there is no dtype 'float31'"),
        (builders.dashed, (), "'my-features' cannot be the name of an input in a signature"),
        (builders.tiny, ("--input", "my.x"), "'my.x' cannot be the name of an input in a signature"),
    ],
)
def test_names_and_shapes_that_cannot_be_are_refused(
    export: Export, tmp_path: Path, build: Callable[[], Any], options: tuple[str, ...], message: str
) -> None:
    build().save(tmp_path / "model.keras")
    finished = export(tmp_path / "model.keras", tmp_path / "base", *options)
    assert (finished.code, message in finished.err) == (2, True), finished.err
    assert not (tmp_path / "base").exists()


def test_input_gives_free_dimensions_a_size(export: Export, tmp_path: Path) -> None:
    builders.free_width().save(tmp_path / "wide.keras")
    finished = export(tmp_path / "wide.keras", tmp_path / "wide", "--input", "x:float32[batch,64]")
    assert finished.code == 0, finished.err
    inputs = read_manifest(tmp_path / "wide/1")["signatures"]["serving_default"]["inputs"]
    assert without_tried_sizes(inputs) == {"x": {"dtype": "float32", "shape": [None, 64]}}


def test_a_fixed_batch_has_no_batch_sizes(export: Export, tmp_path: Path) -> None:
    builders.fixed_batch().save(tmp_path / "fixed.keras")
    assert export(tmp_path / "fixed.keras", tmp_path / "fixed").code == 0
    signature = read_manifest(tmp_path / "fixed/1")["signatures"]["serving_default"]
    assert (signature["batch_sizes"], signature["rows_independent"]) == ([], False)


def test_saved_model_is_taken_over_with_its_signatures(export: Export, tensorflow: None, tmp_path: Path) -> None:
    source = _save_module(tmp_path / "source")
    finished = export(source, tmp_path / "lookup")
    assert finished.code == 0, finished.err
    version = tmp_path / "lookup/1"
    manifest = read_manifest(version)
    assert manifest["source"]["kind"] == "savedmodel"
    assert [one["kind"] for one in manifest["source"]["provenance"]] == ["copied"]
    inputs = manifest["signatures"]["serving_default"]["inputs"]
    assert without_tried_sizes(inputs) == {"word": {"dtype": "string", "shape": [None]}}
    assert manifest["signatures"]["scale"]["rows_independent"] is True
    assert (version / "saved_model.pb").read_bytes() == (source / "saved_model.pb").read_bytes()
    served = serve(version, word=np.array([b"two", b"unknown"], object))
    np.testing.assert_array_equal(served["number"], [2, -1])  # the export copied its asset


def test_exported_version_can_be_exported_again(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = ("--model", "tests.exporter.builders:tiny")
    assert export(tiny_checkpoint, tmp_path / "first", *model).code == 0
    again = export(tmp_path / "first/1", tmp_path / "second")
    assert again.code == 0, again.err
    assert "the source's own warm-up requests: " in again.out
    assert read_manifest(tmp_path / "second/1")["source"]["kind"] == "savedmodel"


@pytest.mark.parametrize("inside", ["", "versions", "variables/versions"])
def test_a_base_within_the_source_is_refused(export: Export, tensorflow: None, tmp_path: Path, inside: str) -> None:
    source = _save_module(tmp_path / "source")
    before = sorted(source.rglob("*"))
    finished = export(source, source / inside)
    assert (finished.code, "OUT_BASE is inside SOURCE" in finished.err) == (2, True)
    assert sorted(source.rglob("*")) == before


def test_a_source_with_files_that_cannot_be_copied_is_unreadable(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    source = _save_module(tmp_path / "source")
    (source / "assets" / "gone.txt").symlink_to(tmp_path / "nowhere")
    finished = export(source, tmp_path / "lookup")
    assert (finished.code, "cannot copy source: " in finished.err) == (6, True)
    assert "Traceback" not in finished.err
    assert not (tmp_path / "lookup").exists()


WARMUP = Path("assets.extra/tf_serving_warmup_requests")


@pytest.mark.parametrize(
    ("requests", "cut", "message"),
    [
        ([{"signature": "absent"}], 0, "record 0 is for signature 'absent'"),
        ([{}, {"inputs": {"y": 1.0}}], 0, "record 1 has inputs ['y']"),
        ([{"inputs": {"x": [[1.0, 2.0, 3.0]]}}], 0, "record 0 for scale fails"),
        ([{"inputs": {"x": [[1, 2]]}}], 0, "int32[1, 2] instead of"),
        ([{}] * 1001, 0, "more than 1000 records"),
        ([{}, {}], 5, "damaged after 1 record(s)"),
    ],
    ids=["signature", "input", "shape", "dtype", "too many", "cut"],
)
def test_warmup_requests_of_the_source_that_no_server_could_run_are_refused(
    export: Export, tensorflow: None, tmp_path: Path, requests: list[dict[str, Any]], cut: int, message: str
) -> None:
    source = _save_module(tmp_path / "source")
    _save_warmup(source, [_predict_log(**request) for request in requests])
    content = (source / WARMUP).read_bytes()
    (source / WARMUP).write_bytes(content[: len(content) - cut])
    finished = export(source, tmp_path / "lookup")
    assert (finished.code, message in finished.err) == (9, True), finished.err
    assert not (tmp_path / "lookup").exists()


def test_of_the_sources_warmup_requests_predictions_are_kept(export: Export, tensorflow: None, tmp_path: Path) -> None:
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    other, kept = PredictionLog(), _predict_log()
    other.regress_log.request.model_spec.name = "m"
    _save_warmup(source := _save_module(tmp_path / "source"), [other, kept])
    finished = export(source, tmp_path / "lookup", "--json")
    assert finished.code == 0, finished.out
    assert finished.document["warmup_records"] == 1
    assert "1 warm-up request(s) were dropped because they are not predictions" in finished.document["warnings"]
    # The framing of a TFRecord: the length, and two checksums.
    framing = 16
    assert len((tmp_path / "lookup/1" / WARMUP).read_bytes()) == kept.ByteSize() + framing


def test_warmup_inputs_that_the_model_refuses_are_explained(export: Export, tensorflow: None, tmp_path: Path) -> None:
    source = _save_number_parser(tmp_path / "source")
    np.savez(tmp_path / "good.npz", text=np.array(["1.5", "2"]))
    np.savez(tmp_path / "bad.npz", text=np.array(["1.5", "two"]))
    files = ("--check", tmp_path / "good.npz", "--warmup", tmp_path / "bad.npz")
    finished = export(source, tmp_path / "parser", *files)
    assert (finished.code, "the warm-up request of 2 row(s) for serving_default fails" in finished.err) == (9, True)
    assert not (tmp_path / "parser").exists()


def test_saved_model_takes_no_options_that_would_change_it(export: Export, tensorflow: None, tmp_path: Path) -> None:
    source = _save_module(tmp_path / "source")
    for options in (("--input", "x"), ("--compute-dtype", "bfloat16"), ("--model", "m:f")):
        assert export(source, tmp_path / "lookup", *options).code == 2


def test_made_up_strings_that_a_model_refuses_ask_for_real_ones(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    source = _save_number_parser(tmp_path / "source")
    finished = export(source, tmp_path / "parser")
    assert finished.code == 9
    assert "--check samples.npz" in finished.err
    np.savez(tmp_path / "samples.npz", text=np.array(["1.5", "2"]))
    finished = export(source, tmp_path / "parser", "--check", tmp_path / "samples.npz")
    assert finished.code == 0, finished.err


def test_strings_that_all_get_one_answer_leave_independence_unchecked(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    import tensorflow as tf

    find = tf.function(lambda word: {"found": tf.equal(word, "one")})
    tf.saved_model.save(
        tf.Module(), str(tmp_path / "source"), find.get_concrete_function(word=tf.TensorSpec([None], tf.string))
    )
    finished = export(tmp_path / "source", tmp_path / "find")  # the made-up words do not contain it
    assert "all rows of serving_default get the same answer" in finished.out
    assert read_manifest(tmp_path / "find/1")["signatures"]["serving_default"]["rows_independent"] is False
    np.savez(tmp_path / "samples.npz", word=np.array(["one", "two"]))
    finished = export(tmp_path / "source", tmp_path / "find", "--check", tmp_path / "samples.npz")
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "find/2")["signatures"]["serving_default"]["rows_independent"] is True
    assert read_manifest(tmp_path / "find/2")["parity"]["rows"] == 2


def test_made_up_words_come_from_the_vocabulary(export: Export, tensorflow: None, tmp_path: Path) -> None:
    finished = export(_save_module(tmp_path / "source"), tmp_path / "lookup")
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "lookup/1")["signatures"]["serving_default"]["rows_independent"] is True


@pytest.mark.parametrize("rows", [0, 1])
def test_strings_that_mix_are_found_out(export: Export, tensorflow: None, tmp_path: Path, rows: int) -> None:
    """Test made-up rows, and one real row with made-up rows."""
    import tensorflow as tf

    module = tf.Module()
    mix = tf.function(lambda text: {"longer": tf.strings.length(text) - tf.reduce_max(tf.strings.length(text))})
    tf.saved_model.save(
        module, str(tmp_path / "source"), mix.get_concrete_function(text=tf.TensorSpec([None], tf.string))
    )
    np.savez(tmp_path / "samples.npz", text=np.array(["one"]))
    check = ("--check", tmp_path / "samples.npz") if rows else ()
    finished = export(tmp_path / "source", tmp_path / "mix", *check)
    assert finished.code == 0, finished.err
    assert "a row of serving_default depends on the batch size" in finished.out


def test_answers_of_nothing_but_nan_are_said_to_prove_nothing(export: Export, tensorflow: None, tmp_path: Path) -> None:
    import tensorflow as tf

    spoil = tf.function(lambda x: {"spoilt": x * float("nan"), "whole": x})
    tf.saved_model.save(
        tf.Module(), str(tmp_path / "source"), spoil.get_concrete_function(x=tf.TensorSpec([None, 2], tf.float32))
    )
    finished = export(tmp_path / "source", tmp_path / "nan")
    assert "returns only NaN in spoilt, so that equality with the source is not proven" in finished.out


def test_tf1_signature_of_examples_is_checked_with_an_example_made_for_it(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    source = _save_tf1(tmp_path / "source")
    finished = export(source, tmp_path / "tf1")
    assert finished.code == 0, finished.err
    assert "loads in a session but not in Python" in finished.out
    signatures = read_manifest(tmp_path / "tf1/1")["signatures"]
    assert without_tried_sizes(signatures["classify"]["inputs"]) == {"examples": {"dtype": "string", "shape": [None]}}
    assert signatures["classify"]["rows_independent"] is True
    assert signatures["weights"]["batch_sizes"] == []


@pytest.mark.parametrize("kind", ["nothing", "empty directory", "a text file", "a base of versions"])
def test_what_is_no_source_is_said_so(export: Export, tensorflow: None, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "a text file":
        source.write_text("hello")
    elif kind != "nothing":
        source.mkdir()
    if kind == "a base of versions":
        _save_module(source / "1")
    finished = export(source, tmp_path / "base")
    assert finished.code == 6
    assert ("Its subdirectories 1 are SavedModels" in finished.err) is (kind == "a base of versions")


def _predict_log(signature: str = "scale", inputs: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - a message
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    log = PredictionLog()
    log.predict_log.request.model_spec.signature_name = signature
    for name, value in (inputs or {"x": [[1.0, 2.0]]}).items():
        log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return log


def _save_warmup(source: Path, logs: list[Any]) -> None:
    import tensorflow as tf

    (source / WARMUP).parent.mkdir()
    with tf.io.TFRecordWriter(str(source / WARMUP)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())


def _save_module(path: Path) -> Path:
    """Save a lookup table with an asset, and a second signature of floats."""
    import tensorflow as tf

    vocabulary = path.parent / "vocabulary.txt"
    vocabulary.write_text("zero\none\ntwo\n")
    module = tf.Module()
    initializer = tf.lookup.TextFileInitializer(
        str(vocabulary), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.table = tf.lookup.StaticHashTable(initializer, -1)
    module.factor = tf.Variable(2.0)
    find = tf.function(lambda word: {"number": module.table.lookup(word)})
    scale = tf.function(lambda x: {"y": x * module.factor})
    signatures = {
        "serving_default": find.get_concrete_function(word=tf.TensorSpec([None], tf.string)),
        "scale": scale.get_concrete_function(x=tf.TensorSpec([None, 2], tf.float32)),
    }
    tf.saved_model.save(module, str(path), signatures)
    return path


def _save_tf1(path: Path) -> Path:
    """Save a classifier of tf.Examples, and a signature that returns a reference variable, which Python cannot load."""
    import tensorflow as tf

    v1, graph = tf.compat.v1, tf.Graph()
    with graph.as_default(), v1.Session(graph=graph) as session:
        examples, factor = v1.placeholder(tf.string, (None,)), v1.placeholder_with_default(1.0, ())
        features = v1.io.parse_example(
            examples,
            {
                "x": tf.io.FixedLenFeature((2,), tf.float32),
                "n": tf.io.FixedLenFeature((), tf.int64),
                "word": tf.io.FixedLenFeature((), tf.string),
            },
        )
        weights = v1.Variable(np.ones((2, 1), np.float32), use_resource=False)
        found = tf.strings.to_hash_bucket_fast(features["word"], 2) + features["n"]
        scores = tf.matmul(features["x"], weights) + tf.cast(found, tf.float32)[:, None]
        session.run(v1.global_variables_initializer())
        signature = v1.saved_model.predict_signature_def
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {
                "classify": signature({"examples": examples}, {"scores": scores}),
                "weights": signature({"factor": factor}, {"weights": v1.assign(weights, weights + 0 * factor)}),
            },
        )
        builder.save()
    return path


def _save_number_parser(path: Path) -> Path:
    import tensorflow as tf

    module = tf.Module()
    parse = tf.function(lambda text: {"number": tf.strings.to_number(text)})
    tf.saved_model.save(module, str(path), parse.get_concrete_function(text=tf.TensorSpec([None], tf.string)))
    return path
