"""TFRecord files beside TensorFlow's own reader and writer."""

from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpuserve_formats.tf_record import FRAME_BYTES, framed, read_records

RECORDS = [b"first", b"", bytes(range(256)) * 300]


def read(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return list(read_records(file))


def tensorflow_reads(path: Path) -> list[bytes]:
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=600), max_size=5))
def test_tensorflow_reads_what_is_written_and_writes_the_same(tmp_path: Path, records: list[bytes]) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(b"".join(framed(record) for record in records))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in records:
            writer.write(record)
    assert ours.read_bytes() == theirs.read_bytes()
    assert tensorflow_reads(ours) == records
    assert read(theirs) == records
    assert theirs.stat().st_size == sum(len(record) + FRAME_BYTES for record in records)


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda content: content[:-1], id="its last checksum is cut short"),
        pytest.param(lambda content: content[: -FRAME_BYTES // 2], id="its last record is cut short"),
        pytest.param(lambda content: content + framed(b"x")[:12], id="a length without a record"),
        pytest.param(lambda content: b"\x06" + content[1:], id="a length is another"),
        pytest.param(lambda content: content.replace(b"first", b"fir5t"), id="a record is another"),
        pytest.param(lambda content: framed(b"x")[:12].replace(b"\x01", b"\xff"), id="a length without its checksum"),
        pytest.param(lambda content: b"hello, this is some text that nobody framed", id="some text"),
    ],
)
def test_what_tensorflow_refuses_is_refused(tmp_path: Path, damaged: object) -> None:
    assert callable(damaged)
    path = tmp_path / "records"
    path.write_bytes(damaged(b"".join(framed(record) for record in RECORDS)))
    with pytest.raises(tf.errors.DataLossError):
        tensorflow_reads(path)
    with pytest.raises(ValueError, match=r"checksum|cut short"):
        read(path)


@pytest.mark.parametrize("size", [1, 11])
def test_a_file_may_end_within_a_length_as_for_tensorflow(tmp_path: Path, size: int) -> None:
    path = tmp_path / "records"
    path.write_bytes(framed(b"first") + framed(b"second")[:size])
    assert read(path) == tensorflow_reads(path) == [b"first"]


def test_whole_records_before_the_damage_are_read(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"".join(framed(record) for record in RECORDS)[:-1])
    with path.open("rb") as file:
        records = read_records(file)
        assert [next(records) for _ in RECORDS[:-1]] == RECORDS[:-1]
        with pytest.raises(ValueError, match="cut short"):
            next(records)
