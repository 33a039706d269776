import contextlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from tests.server.observe.request_log.predict_entries import entry, inputs_of, read_lines, read_tfrecords
from tpuserve_server.observe.options import LogFormat, Rotation
from tpuserve_server.observe.request_log.writer import LogTarget, RotatingFiles

READ = {"jsonl": read_lines, "tfrecord": read_tfrecords}
FORMATS: list[LogFormat] = ["jsonl", "tfrecord"]


def record(value: float) -> bytes:
    return entry(LogTarget("", "jsonl", 1), value).serialize()


@pytest.mark.parametrize("log_format", FORMATS)
def test_records_are_read_back_in_order(tmp_path: Path, log_format: LogFormat) -> None:
    files = RotatingFiles(str(tmp_path / "new" / "m"), log_format, Rotation(1 << 20, 3))
    for value in range(5):
        files.write(record(value))
    files.close()
    (path,) = (tmp_path / "new").iterdir()
    assert path.suffix == f".{log_format}"
    assert inputs_of(READ[log_format](path)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("log_format", FORMATS)
def test_a_flush_is_enough_to_read(tmp_path: Path, log_format: LogFormat) -> None:
    files = RotatingFiles(str(tmp_path / "m"), log_format, Rotation(1 << 20, 3))
    files.write(record(1))
    files.flush()
    assert inputs_of(READ[log_format](*tmp_path.iterdir())) == [1]
    files.close()


@pytest.mark.parametrize("log_format", FORMATS)
def test_a_full_file_is_followed_by_another_and_the_oldest_go(tmp_path: Path, log_format: LogFormat) -> None:
    files = RotatingFiles(str(tmp_path / "m"), log_format, Rotation(max_bytes=1, max_files=3))
    for value in range(10):
        files.write(record(value))
    files.close()
    assert inputs_of(READ[log_format](*tmp_path.iterdir())) == [7, 8, 9]


def test_files_of_earlier_processes_count_and_others_are_left_alone(tmp_path: Path) -> None:
    old = tmp_path / "m-20200101T000000-99-000001.jsonl"
    others = {"m-notes.jsonl", "m-20200101T000000-99-000001.tfrecord", "mm-20200101T000000-99-000001.jsonl"}
    for name in (old.name, *others):
        (tmp_path / name).write_text("old")
    files = RotatingFiles(str(tmp_path / "m"), "jsonl", Rotation(1 << 20, max_files=1), now_s=lambda: 1.7e9)
    files.write(record(1))
    files.close()
    (added,) = {path.name for path in tmp_path.iterdir()} - others
    assert added.startswith("m-20231114T221320-")


def test_large_tensors_are_base64_in_a_line(tmp_path: Path) -> None:
    log = PredictionLog()
    wide = np.arange(5000, dtype=np.float32)
    log.predict_log.request.inputs["x"].float_val.extend(wide)
    log.predict_log.request.inputs["x"].dtype = tf.float32.as_datatype_enum
    log.predict_log.request.inputs["x"].tensor_shape.dim.add(size=5000)
    log.predict_log.response.outputs["y"].CopyFrom(tf.make_tensor_proto([0.5]))
    files = RotatingFiles(str(tmp_path / "m"), "jsonl", Rotation(1 << 20, 1))
    files.write(log.SerializeToString())
    files.close()
    (read,) = read_lines(*tmp_path.iterdir())
    assert read.predict_log.request.inputs["x"].tensor_content
    np.testing.assert_array_equal(tf.make_ndarray(read.predict_log.request.inputs["x"]), wide)
    assert list(read.predict_log.response.outputs["y"].float_val) == [0.5]


@pytest.mark.parametrize("log_format", FORMATS)
def test_what_cannot_be_written_is_an_oserror(tmp_path: Path, log_format: LogFormat) -> None:
    (tmp_path / "file").write_text("in the way")
    files = RotatingFiles(str(tmp_path / "file" / "m"), log_format, Rotation(1, 1))
    with pytest.raises(OSError, match=r"exists|directory"):
        files.write(record(1))


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_oserror(tmp_path: Path, log_format: LogFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "with_name", lambda _path, _name: Path("/dev/full"))
    files = RotatingFiles(str(tmp_path / "m"), log_format, Rotation(1 << 20, 1))
    files.write(record(1))
    with pytest.raises(OSError, match=r"[Nn]o space"):
        files.flush()
    with contextlib.suppress(OSError):
        files.close()


@pytest.mark.parametrize("log_format", FORMATS)
def test_a_log_that_begins_again_within_the_second_keeps_what_is_there(tmp_path: Path, log_format: LogFormat) -> None:
    for value in range(3):
        files = RotatingFiles(str(tmp_path / "m"), log_format, Rotation(1 << 20, 5), now_s=lambda: 1.7e9)
        files.write(record(value))
        files.close()
    assert inputs_of(READ[log_format](*tmp_path.iterdir())) == [0, 1, 2]
