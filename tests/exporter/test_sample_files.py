"""Tests for samples from TFRecord files and arrays, for signatures of tensors and of Examples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest
from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.terms.sample_rows import MOST_RECORDS, open_samples
from tpuserve_exporter.terms.signature import Signature, TensorSpec

pytestmark = [
    pytest.mark.xdist_group(__name__),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
ROWS = np.random.default_rng(3).random((5, 3)).astype(np.float32)
BOTH = ("--signature", "serving_default=tensor", "--signature", "examples=tf_example", "--batch-sizes", "1,2")


@pytest.fixture
def tiny(tensorflow: None, tmp_path: Path) -> Path:
    builders.tiny().save(tmp_path / "tiny.keras")
    return tmp_path / "tiny.keras"


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_records_serve_signatures_of_tensors_and_of_examples(
    export: Export, tiny: Path, tmp_path: Path, compression: str
) -> None:
    samples = write_records(tmp_path / "samples.tfrecord", [{"features": row} for row in ROWS], compression)
    finished = export(tiny, tmp_path / "m", *BOTH, "--check", samples, "--warmup", samples)
    assert finished.code == 0, finished.err
    parity = read_manifest(tmp_path / "m/1")["parity"]["signatures"]
    assert {name: one["rows"] for name, one in parity.items()} == {"serving_default": 5, "examples": 5}
    requests = (tmp_path / "m/1/assets.extra/tf_serving_warmup_requests").read_bytes()
    assert ROWS[:2].tobytes() in requests


def test_arrays_serve_signatures_of_examples(export: Export, tiny: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", features=ROWS)
    finished = export(tiny, tmp_path / "m", *BOTH, "--check", tmp_path / "samples.npz")
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "m/1")["parity"]["signatures"]["examples"]["rows"] == 5


def test_arrays_that_an_image_signature_lacks_are_asked_for(export: Export, tmp_path: Path, tensorflow: None) -> None:
    builders.pictures().save(tmp_path / "pictures.keras")
    np.savez(tmp_path / "samples.npz", image=np.ones((2, 6, 8, 3)))
    flags = ("--signature", "photo=image_bytes,scale=0..1", "--check", tmp_path / "samples.npz")
    finished = export(tmp_path / "pictures.keras", tmp_path / "m", *flags)
    assert finished.code == 9
    assert "samples.npz has no array for input 'image_bytes' of photo. It has image" in finished.err


def test_given_inputs_that_the_model_refuses_are_explained(export: Export, tmp_path: Path, tensorflow: None) -> None:
    builders.pictures().save(tmp_path / "pictures.keras")
    np.savez(tmp_path / "samples.npz", image_bytes=[b"no image", b"neither"])
    flags = ("--signature", "photo=image_bytes,scale=0..1", "--check", tmp_path / "samples.npz")
    finished = export(tmp_path / "pictures.keras", tmp_path / "m", *flags)
    assert finished.code == 9
    assert "photo fails on the inputs of --check: Unknown image file format" in finished.err


def test_sequences_of_records_are_padded_to_the_longest(tmp_path: Path) -> None:
    samples = write_records(tmp_path / "s", [{"ids": [1, 2, 3], "word": b"a"}, {"ids": [4], "word": b"b"}])
    inputs = {"ids": TensorSpec("int32", (None, None)), "word": TensorSpec("string", (None,))}
    signature = Signature("s", inputs, {})
    file = open_samples(samples, {"ids": 9})
    assert file.find("ids", signature).tolist() == [[1, 2, 3], [4, 9, 9]]
    assert [type(word) for word in file.find("word", signature)] == [bytes, bytes]
    assert file.find("word", signature).tolist() == [b"a", b"b"]


def test_of_a_whole_data_set_the_first_records_are_taken(tmp_path: Path) -> None:
    samples = write_records(tmp_path / "s", [{"x": [1.0]}] * (MOST_RECORDS + 1))
    signature = Signature("s", {"x": TensorSpec("float32", (None, 1))}, {})
    assert open_samples(samples, {}).find("x", signature).shape == (MOST_RECORDS, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello, this is some text", "cannot read samples: it is neither .npz, .csv nor TFRecord"),
        (b"", "samples contains no records"),
        (None, "cannot read samples: it is damaged after 1 record(s)"),
    ],
)
def test_files_that_are_no_samples_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = write_records(tmp_path / "samples", [{"x": [1.0]}, {"x": [2.0]}])
    path.write_bytes(path.read_bytes()[:-3] if content is None else content)
    with pytest.raises(SamplesUnfit) as refused:
        open_samples(path, {})
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("z", TensorSpec("float32", (None, 1)), "record 0 of samples has no feature 'z'. It has x"),
        ("x", TensorSpec("float32", (None, 2)), "input 'x' is float32[?, 2], but the file's rows have 1, 3 value(s)"),
    ],
)
def test_records_that_do_not_fit_are_explained(tmp_path: Path, name: str, spec: TensorSpec, message: str) -> None:
    samples = open_samples(write_records(tmp_path / "samples", [{"x": [1.0]}, {"x": [2.0, 3.0, 4.0]}]), {})
    with pytest.raises(SamplesUnfit) as refused:
        samples.find(name, Signature("s", {name: spec}, {}))
    assert str(refused.value) == message


def test_records_that_are_no_examples_are_refused(tmp_path: Path) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "samples")) as writer:
        writer.write(b"\xff\xff\xff")
    with pytest.raises(SamplesUnfit, match=r"record 0 of samples is not a tf\.Example"):
        open_samples(tmp_path / "samples", {})


def write_records(path: Path, rows: list[dict[str, Any]], compression: str = "") -> Path:
    with tf.io.TFRecordWriter(str(path), compression or None) as writer:
        for row in rows:
            example = tf.train.Example()
            for name, value in row.items():
                feature = example.features.feature[name]
                if isinstance(value, bytes):
                    feature.bytes_list.value.append(value)
                elif isinstance(value[0], int):
                    feature.int64_list.value.extend(value)
                else:
                    feature.float_list.value.extend(value)
            writer.write(example.SerializeToString())
    return path


def test_an_archive_of_python_objects_gets_a_next_step(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 2)), names=np.array(["a", "b"], object))
    with pytest.raises(
        SamplesUnfit, match=r"its array 'names' holds Python objects.* Save texts as np.array\(texts, str\)"
    ):
        open_samples(tmp_path / "x.npz", {})
