"""TFRecord files. The second opinion is TensorFlow's reader."""

import tempfile
from pathlib import Path

import tensorflow as tf

from tests.fuzz.target import Target, expect
from tpuserve_formats.errors import FormatError
from tpuserve_formats.tf_record import FRAME_BYTES, framed, read_records

_MOST_CLAIMED_BYTES = 1 << 20
# An input that begins with R is a list of records, so that the fuzzer needs no checksums. Each has a length
# byte; the last byte of the input cuts bytes off the end of the file.


def run(data: bytes) -> bool:
    """Read a file, and compare the records before the first error with those of TensorFlow."""
    content = _file_of_records(data[1:]) if data[:1] == b"R" else data
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        ours, error = _ours(Path(file.name), refuse_rest=False)
        strict, strict_error = _ours(Path(file.name), refuse_rest=True)
        if not _claims_much(content, ours):
            theirs, has_failed = _theirs(file.name)
            expect(ours == theirs, f"{ours} and TensorFlow's {theirs}")
            expect((error is not None) == has_failed, f"ours: {error!r}, TensorFlow failed: {has_failed}")
    expect(ours == strict, "the strict reader reads other records")
    expect(error is None or strict_error is not None, "the strict reader accepts more")
    return error is None


def _claims_much(content: bytes, records: list[bytes]) -> bool:
    """Return whether the length after these records is large. TensorFlow allocates before it compares with the file."""
    at = sum(FRAME_BYTES + len(record) for record in records)
    return int.from_bytes(content[at : at + 8], "little") > _MOST_CLAIMED_BYTES


def _file_of_records(data: bytes) -> bytes:
    body, cut = data[:-1], data[-1:] or b"\0"
    parts = []
    while body:
        parts.append(framed(body[1 : 1 + body[0]]))
        body = body[1 + body[0] :]
    content = b"".join(parts)
    return content[: len(content) - cut[0] % 32] if cut[0] % 32 else content


def _ours(path: Path, *, refuse_rest: bool) -> tuple[list[bytes], FormatError | None]:
    records: list[bytes] = []
    try:
        with path.open("rb") as file:
            for record in read_records(file, refuse_rest=refuse_rest):
                records.append(record)  # noqa: PERF402  those before the error count
    except FormatError as error:
        return records, error
    return records, None


def _theirs(name: str) -> tuple[list[bytes], bool]:
    records: list[bytes] = []
    try:
        for record in tf.compat.v1.io.tf_record_iterator(name):
            records.append(record)  # noqa: PERF402  those before the error count
    except tf.errors.DataLossError:
        return records, True
    return records, False


TARGET = Target(run, max_bytes=512)
