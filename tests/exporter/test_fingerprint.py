"""Tests for fingerprints: equal for all exports of one model, and different for models with other outputs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.exporter.conftest import Finished, read_manifest
from tpuserve_exporter.version.fingerprint import hash_graph, holds
from tpuserve_exporter.version.manifest import PublishedVersion
from tpuserve_formats.manifest.version import Manifest

pytestmark = [pytest.mark.xdist_group(__name__)]
TINY = ("--model", "tests.exporter.builders:tiny", "--batch-sizes", "1,2")


def save(
    path: Path,
    *,
    factor: float = 2.0,
    activation: str = "relu",
    words: tuple[str, ...] = ("a", "b"),
    swap: bool = False,
) -> Path:
    """Save a module with two variables, a constant and a table, with TensorFlow alone."""
    import tensorflow as tf

    module = tf.Module()
    module.a, module.b = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    keys, values = tf.constant(words), tf.range(len(words), dtype=tf.int64)
    module.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)

    def call(x: tf.Tensor, word: tf.Tensor) -> dict[str, tf.Tensor]:
        scale, shift = (module.b, module.a) if swap else (module.a, module.b)
        y = getattr(tf.nn, activation)(x * scale * factor + shift)
        return {"y": y, "id": module.table.lookup(word)}

    function = tf.function(
        call, input_signature=[tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.string, "word")]
    )
    tf.saved_model.save(module, str(path), signatures=function)
    return path


def test_a_graph_hash_is_of_what_is_computed(tensorflow: None, tmp_path: Path) -> None:
    """Compare graphs of which TensorFlow's own singleprint distinguishes only one."""
    first = hash_graph(save(tmp_path / "first"))
    assert hash_graph(save(tmp_path / "again")) == first
    others = {
        "a constant": hash_graph(save(tmp_path / "factor", factor=3.0)),
        "an operation": hash_graph(save(tmp_path / "activation", activation="tanh")),
        "a table's content": hash_graph(save(tmp_path / "words", words=("a", "c"))),
        "which variable": hash_graph(save(tmp_path / "swap", swap=True)),
    }
    assert len({first, *others.values()}) == 1 + len(others), others


def test_the_same_export_again_publishes_nothing_and_says_so(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    base = tmp_path / "tiny"
    assert export(tiny_checkpoint, base, *TINY).code == 0
    again = export(tiny_checkpoint, base, *TINY)
    assert again.code == 0
    assert "Not published again: version 1 is identical (--again publishes it anyway)" in again.out
    assert [path.name for path in base.iterdir()] == ["1"]
    document = export(tiny_checkpoint, base, *TINY, "--json").document
    assert (document["version"], document["published"]) == (1, False)
    assert document["path"] == str(base / "1")
    wanted = export(tiny_checkpoint, base, *TINY, "--again", "--json").document
    assert (wanted["version"], wanted["published"]) == (2, True)
    assert read_manifest(base / "1")["fingerprint"] == read_manifest(base / "2")["fingerprint"]


def test_what_is_served_otherwise_is_published(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    base, samples = tmp_path / "tiny", tmp_path / "samples.npz"
    np.savez(samples, features=np.eye(3, dtype=np.float32))
    assert export(tiny_checkpoint, base, *TINY).code == 0
    for changed in (("--batch-sizes", "1,4"), ("--warmup", str(samples)), ("--input", "renamed")):
        done = export(tiny_checkpoint, base, *TINY, *changed, "--json")
        assert (done.code, done.document["published"]) == (0, True), changed
    # Neither the tolerance nor the requested number identifies a version.
    done = export(tiny_checkpoint, base, *TINY, "--input", "renamed", "--atol", "0.1", "--json")
    assert (done.document["version"], done.document["published"]) == (4, False)
    requested = export(tiny_checkpoint, base, *TINY, "--input", "renamed", "--version", "9", "--json")
    assert (requested.document["version"], requested.document["published"]) == (9, True)


def test_a_version_that_lost_a_file_or_has_another_s_manifest_is_not_taken_for_this_one(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    base = tmp_path / "tiny"
    assert export(tiny_checkpoint, base, *TINY).code == 0
    text = (base / "1/assets.extra/tpuserve/manifest.json").read_bytes()
    manifest = Manifest.model_validate_json(text)
    sizes = {name: file.size_bytes for name, file in manifest.files.items()}
    assert holds(PublishedVersion(1, text, sizes), manifest)
    for other in (
        PublishedVersion(1, text, {**sizes, "saved_model.pb": 3}),
        PublishedVersion(1, text, {}),
        PublishedVersion(1, None, sizes),
        PublishedVersion(1, b"[]", sizes),
        PublishedVersion(1, b"\xff", sizes),
        PublishedVersion(1, json.dumps({"fingerprint": manifest.fingerprint}).encode(), sizes),
    ):
        assert not holds(other, manifest)
