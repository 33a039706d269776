"""File of PredictionLogs: JSON lines, or the TFRecord that warm-up reads. For one thread."""

from pathlib import Path
from typing import Protocol

from google.protobuf import json_format

from tpuserve_formats.messages.official import PredictionLog, TensorProto
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_formats.tf_record import framed
from tpuserve_server.request_log.options import LogFormat
from tpuserve_server.wire.tensor_proto import decode_tensor

# Larger tensors are written as base64 of their memory. Formatting their numbers would hold the interpreter, and delay
# requests, for long.
_MAX_JSON_VALUES = 1024


class RecordFile(Protocol):
    """Open file. Any method may raise OSError."""

    def write(self, record: bytes) -> int:
        """Write a serialized PredictionLog, and return its size in the file in bytes."""
        ...

    def flush(self) -> None:
        """Flush the written records to the operating system."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


def open_record_file(path: Path, format_: LogFormat) -> RecordFile:
    """Open a new, empty file. Raises OSError."""
    return _JsonLines(path) if format_ == "jsonl" else _TfRecord(path)


class _JsonLines:
    """File with one PredictionLog per line, in protobuf's JSON with the fields' own names."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, record: bytes) -> int:
        return self._file.write(_line(PredictionLog.FromString(record)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _TfRecord:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, record: bytes) -> int:
        return self._file.write(framed(record))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(log: PredictionLog) -> bytes:
    for tensors in (log.predict_log.request.inputs, log.predict_log.response.outputs):
        for name in tensors:
            _pack(name, tensors[name])
    text = json_format.MessageToJson(log, preserving_proto_field_name=True, indent=None, ensure_ascii=False)
    return text.encode() + b"\n"


def _pack(name: str, tensor: TensorProto) -> None:
    """Move the values of a large numeric tensor from its typed field to tensor_content."""
    if tensor.tensor_content or tensor.string_val or tensor.ByteSize() <= _MAX_JSON_VALUES:
        return
    array = decode_tensor(name, tensor)
    if array.size > _MAX_JSON_VALUES:
        tensor.ParseFromString(encode_tensor(array, as_content=True))
