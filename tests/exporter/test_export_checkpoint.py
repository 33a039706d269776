"""Tests that a TF2 checkpoint becomes a version or an error that explains why."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest, save_checkpoint
from tests.exporter.served import call, serve

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
TINY = ("--model", "tests.exporter.builders:tiny")
DIGITS = ("--model", "examples.digits.model:build")


def test_digits_checkpoint_becomes_version_1_that_a_session_serves(
    export: Export, digits_checkpoint: Path, tmp_path: Path
) -> None:
    from examples.digits import data

    finished = export(digits_checkpoint, tmp_path / "digits", *DIGITS)
    assert finished.code == 0, finished.err
    assert "8 matched, 17 of optimizer state not used" in finished.out
    assert "Published version 1" in finished.out
    _, held_out = data.load()
    probabilities = serve(tmp_path / "digits/1", image=held_out.images)["probabilities"]
    assert probabilities.dtype == np.float32
    assert np.mean(probabilities.argmax(axis=1) == held_out.labels) > 0.8  # trained weights, not initial weights


def test_manifest_describes_the_version(export: Export, digits_checkpoint: Path, tmp_path: Path) -> None:
    version = tmp_path / "digits" / "1"
    assert export(digits_checkpoint, tmp_path / "digits", *DIGITS, "--batch-sizes", "8,1,4").code == 0
    manifest = read_manifest(version)
    assert manifest["format_version"] == 1
    assert manifest["source"] == {
        "kind": "tf2-ckpt",
        "name": "ckpt-42",
        "step": 42,
        "builder": "examples.digits.model:build",
        "provenance": [{"kind": "parameters", "part": "model", "count": 8}],
    }
    assert manifest["compute_dtype"] == "mixed_bfloat16"
    assert manifest["cpu"] == {"allow_bfloat16_kernels": True}
    assert manifest["signatures"] == {
        "serving_default": {
            "inputs": {
                "image": {
                    "dtype": "float32",
                    "shape": [None, 8, 8, 1],
                    "tried_sizes": [[1, 8], None, None, None],
                },
            },
            "outputs": {"probabilities": {"dtype": "float32", "shape": [None, 10]}},
            "batch_sizes": [1, 4, 8],
            "rows_independent": True,
        }
    }
    assert manifest["parity"]["rows"] == 8
    assert manifest["parity"]["max_abs_difference"] <= 0.02
    written = {path.relative_to(version).as_posix(): path for path in version.rglob("*") if path.is_file()}
    del written["assets.extra/tpuserve/manifest.json"], written["assets.extra/tpuserve/reports/export.html"]
    assert set(manifest["files"]) == set(written)
    for name, path in written.items():
        content = path.read_bytes()
        assert manifest["files"][name] == {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}


def test_version_has_its_report_without_inputs_and_paths(
    export: Export, digits_checkpoint: Path, tmp_path: Path
) -> None:
    base = tmp_path / "digits"
    whole = tmp_path / "whole.html"
    found = export(digits_checkpoint, base, *DIGITS, "--report", whole)
    assert found.code == 0, found.err
    page = (base / "1/assets.extra/tpuserve/reports/export.html").read_text()
    assert "<title>Export of digits</title>" in page
    assert 'name="dcterms.created"' in page
    assert "passed every check" in page
    assert "Sample answers" in whole.read_text()
    assert "Sample answers" not in page
    assert str(tmp_path) not in page
    assert str(digits_checkpoint) not in page


def test_warmup_has_a_request_for_each_batch_size(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    assert export(tiny_checkpoint, tmp_path / "scorer", *TINY, "--batch-sizes", "1,2,4").code == 0
    path = tmp_path / "scorer/1/assets.extra/tf_serving_warmup_requests"
    records = [PredictionLog.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
    requests = [record.predict_log.request for record in records]
    assert [request.model_spec.name for request in requests] == ["scorer"] * 3
    assert {request.model_spec.signature_name for request in requests} == {"serving_default"}
    assert [tf.make_ndarray(request.inputs["features"]).shape for request in requests] == [(1, 3), (2, 3), (4, 3)]


def test_versions_count_up_and_are_readable_by_other_users(
    export: Export, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    base = tmp_path / "tiny"
    assert export(tiny_checkpoint, base, *TINY, "--version", "41").code == 0
    assert export(tiny_checkpoint, base, *TINY, "--again").code == 0
    assert sorted(path.name for path in base.iterdir()) == ["41", "42"]
    assert (base / "42").stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in (base / "42").rglob("*"))


def test_allowed_differences_pass(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    extra = ("--model", "tests.exporter.builders:tiny_with_extra", "--allow-missing", "extra/*")
    assert export(tiny_checkpoint, tmp_path / "extra", *extra).code == 0
    headless = ("--model", "tests.exporter.builders:headless", "--allow-unused", "scores/*")
    assert export(tiny_checkpoint, tmp_path / "headless", *headless).code == 0
    assert set(read_manifest(tmp_path / "headless/1")["signatures"]["serving_default"]["outputs"]) == {"hidden"}


def test_names_counted_otherwise_are_matched_by_position(export: Export, tmp_path: Path) -> None:
    builders.unnamed()
    trained = builders.unnamed()  # the second in its process: dense_2 and dense_3
    source = save_checkpoint(tmp_path / "checkpoints", trained)
    rows = np.random.default_rng(1).random((2, 3)).astype(np.float32)
    expected = trained(rows).numpy()
    finished = export(source, tmp_path / "unnamed", "--model", "tests.exporter.builders:unnamed")
    assert finished.code == 0, finished.err
    assert "matched by position" in finished.out
    np.testing.assert_allclose(_serve(tmp_path / "unnamed/1", inputs=rows), expected, atol=1e-6)


def test_float32_values_go_into_bfloat16_variables(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--model-arg", "dtype=bfloat16", "--json")
    assert finished.code == 0
    assert finished.document["restore"]["counts"]["cast"] == 4
    assert finished.document["manifest"]["signatures"]["serving_default"]["outputs"]["scores"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("compute_dtype", ["keep", "float32"])
def test_a_normalization_layer_uses_what_it_was_adapted_to(export: Export, tmp_path: Path, compute_dtype: str) -> None:
    trained = builders.normalized()
    trained.layers[-1].adapt(np.array([[1, 20, 300], [3, 40, 500]], np.float32))
    source = _save_models(tmp_path / "checkpoints", model=trained)
    model = ("--model", "tests.exporter.builders:normalized", "--compute-dtype", compute_dtype)
    finished = export(source, tmp_path / "normalized", *model)
    assert finished.code == 0, finished.err
    served = _serve(tmp_path / "normalized/1", features=np.array([[2, 30, 400], [3, 40, 500]], np.float32))
    np.testing.assert_allclose(served, [[0, 0, 0], [1, 1, 1]], atol=1e-5)


def test_of_two_models_that_fit_the_one_called_model_is_taken_and_the_other_named(
    export: Export, tmp_path: Path
) -> None:
    other, trained = builders.tiny(), builders.tiny()
    source = _save_models(tmp_path / "checkpoints", model=trained, teacher=other)
    finished = export(source, tmp_path / "tiny", *TINY)
    assert finished.code == 0, finished.err
    assert "used 'model' of the checkpoint, although 'teacher' would also fit" in finished.out
    rows = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(_serve(tmp_path / "tiny/1", features=rows), trained(rows).numpy(), atol=1e-6)
    restore = export(source, tmp_path / "tiny", *TINY, "--json").document["restore"]
    assert sorted(restore["other_models"]["teacher"]) == [
        "hidden/bias",
        "hidden/kernel",
        "scores/bias",
        "scores/kernel",
    ]
    assert restore["bookkeeping"] == ["save_counter"]


def test_a_model_within_another_object_is_taken_by_its_path(export: Export, tmp_path: Path) -> None:
    import tensorflow as tf

    agent = tf.Module()
    agent.net, agent.target = builders.tiny(), builders.tiny()
    source = _save_models(tmp_path / "checkpoints", agent=agent)
    refused = export(source, tmp_path / "tiny", *TINY)
    assert refused.code == 2
    assert "'agent/net', 'agent/target'. Choose one with --weights agent/net" in " ".join(refused.err.split())
    finished = export(source, tmp_path / "tiny", *TINY, "--weights", "agent/target")
    assert finished.code == 0, finished.err
    rows = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(_serve(tmp_path / "tiny/1", features=rows), agent.target(rows).numpy(), atol=1e-6)


def test_names_that_only_count_otherwise_do_not_choose_between_models(export: Export, tmp_path: Path) -> None:
    import keras

    keras.backend.clear_session()
    other, trained = builders.unnamed(), builders.unnamed()  # dense, dense_1 and dense_2, dense_3
    source = _save_models(tmp_path / "checkpoints", model=trained, teacher=other)
    finished = export(source, tmp_path / "unnamed", "--model", "tests.exporter.builders:unnamed")
    assert finished.code == 0, finished.err
    rows = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(_serve(tmp_path / "unnamed/1", inputs=rows), trained(rows).numpy(), atol=1e-6)


def test_the_one_model_that_fits_is_taken_whatever_it_is_called(export: Export, tmp_path: Path) -> None:
    source = _save_models(tmp_path / "checkpoints", model=builders.tiny(units=5), student=builders.tiny())
    finished = export(source, tmp_path / "tiny", *TINY, "--json")
    assert finished.code == 0, finished.out
    assert set(finished.document["restore"]["other_models"]) == {"model"}


@pytest.mark.parametrize(("dtype", "allows"), [("float32", False), ("bfloat16", True)])
def test_compute_dtype_is_changed_on_request(
    export: Export, digits_checkpoint: Path, tmp_path: Path, dtype: str, allows: bool
) -> None:
    finished = export(digits_checkpoint, tmp_path / "digits", *DIGITS, "--compute-dtype", dtype)
    assert finished.code == 0, finished.err
    manifest = read_manifest(tmp_path / "digits/1")
    assert ("bfloat16" in manifest["compute_dtype"]) is allows
    assert manifest["cpu"]["allow_bfloat16_kernels"] is allows
    assert manifest["signatures"]["serving_default"]["outputs"]["probabilities"]["dtype"] == "float32"
    assert _convolution_dtypes(tmp_path / "digits/1") == {dtype}


def test_checkpoint_is_found_without_its_state_file(export: Export, digits_checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "moved"
    shutil.copytree(digits_checkpoint, source)
    (source / "checkpoint").unlink()
    assert export(source, tmp_path / "digits", *DIGITS).code == 0
    assert read_manifest(tmp_path / "digits/1")["source"]["name"] == "ckpt-42"


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_a_checkpoint_can_be_named_by_its_prefix(
    export: Export, digits_checkpoint: Path, tmp_path: Path, suffix: str
) -> None:
    assert export(digits_checkpoint / f"ckpt-21{suffix}", tmp_path / "digits", *DIGITS).code == 0
    assert read_manifest(tmp_path / "digits/1")["source"]["step"] == 21


def test_a_subclassed_model_takes_its_inputs_from_the_command_line(export: Export, tmp_path: Path) -> None:
    trained = builders.subclassed()
    source = save_checkpoint(tmp_path / "checkpoints", trained)
    model = ("--model", "tests.exporter.builders:subclassed")
    finished = export(source, tmp_path / "sub", *model)
    assert finished.code == 2
    assert "--input 'name:dtype[batch,...]'" in finished.err
    for some in (("x",), ("x:float32[batch,3]", "z")):
        finished = export(source, tmp_path / "sub", *model, *(part for name in some for part in ("--input", name)))
        assert (finished.code, "Describe each with --input" in finished.err) == (2, True)
    finished = export(source, tmp_path / "sub", *model, "--input", "x:float32[batch,3]", "--output", "y")
    assert finished.code == 0, finished.err
    rows = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(_serve(tmp_path / "sub/1", x=rows), trained(rows).numpy(), atol=1e-6)
    assert set(read_manifest(tmp_path / "sub/1")["signatures"]["serving_default"]["outputs"]) == {"y"}


def _save_models(directory: Path, **models: Any) -> Path:  # noqa: ANN401 - Keras models
    import tensorflow as tf

    tf.train.CheckpointManager(tf.train.Checkpoint(**models), str(directory), max_to_keep=1).save()
    return directory


def _convolution_dtypes(version: Path) -> set[str]:
    import tensorflow as tf
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    (meta_graph,) = SavedModel.FromString((version / "saved_model.pb").read_bytes()).meta_graphs
    nodes = (node for function in meta_graph.graph_def.library.function for node in function.node_def)
    return {tf.dtypes.as_dtype(node.attr["T"].type).name for node in nodes if node.op == "Conv2D"}


def _serve(version: Path, **inputs: np.ndarray) -> np.ndarray:
    """Return the only output."""
    (output,) = call(version, **inputs).values()
    return output
