"""Tests for --labels: the version contains the class names, for clients that get only scores."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporter.conftest import Finished, read_manifest
from tpuserve_exporter.signatures.labels import read_labels
from tpuserve_exporter.sources.hugging_face_directory import read_class_names

pytestmark = [pytest.mark.xdist_group(__name__)]
TINY = ("--model", "tests.exporter.builders:tiny", "--batch-sizes", "1")


def test_labels_are_published_with_the_model_and_make_it_another(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    base, labels = tmp_path / "tiny", tmp_path / "classes.txt"
    assert export(tiny_checkpoint, base, *TINY).code == 0
    assert "labels" not in read_manifest(base / "1")
    labels.write_text("Katze\r\nMäuse\n", encoding="utf-8")
    assert export(tiny_checkpoint, base, *TINY, "--labels", labels).code == 0
    manifest = read_manifest(base / "2")
    assert (base / "2" / manifest["labels"]).read_text(encoding="utf-8") == "Katze\nMäuse\n"
    assert manifest["labels"] in manifest["files"]


def test_a_byte_order_mark_is_no_part_of_the_first_label(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\n", encoding="utf-8-sig")
    assert read_labels(tmp_path / "classes.txt") == ("cat", "dog")


def test_labels_that_cannot_be_read_publish_nothing(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "classes.txt"
    labels.write_text("cat\n\ncat\n")
    done = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--labels", labels, "--json")
    assert (done.code, done.document["error"]) == (2, "--labels: line 2 of classes.txt is empty")
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("architecture", "names", "expected"),
    [
        ("BertForSequenceClassification", ["routine", "urgent"], ("routine", "urgent")),
        ("BertForSequenceClassification", ["LABEL_0", "LABEL_1"], ()),
        ("BertForSequenceClassification", ["twice", "twice"], ()),
        ("BertForSequenceClassification", ["two\nlines", "urgent"], ()),
        ("BertForSequenceClassification", ["score"], ()),
        ("DetrForObjectDetection", ["cat", "dog"], ()),
    ],
    ids=["names", "no names", "repeated", "two lines", "regression", "detector"],
)
def test_a_classifier_of_transformers_names_its_classes(
    tmp_path: Path, architecture: str, names: list[str], expected: tuple[str, ...]
) -> None:
    config = {"architectures": [architecture], "id2label": dict(enumerate(names))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_class_names(tmp_path) == expected
