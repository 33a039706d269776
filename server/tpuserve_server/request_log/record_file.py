"""A file of PredictionLogs: as JSON lines, or as the TFRecord that warm-up reads. Used by one thread."""

from pathlib import Path
from typing import Protocol

from google.protobuf import json_format

from tpuserve_formats.messages.official import PredictionLog, TensorProto
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_formats.tf_record import framed
from tpuserve_server.request_log.options import LogFormat
from tpuserve_server.wire.tensor_proto import decode_tensor

# More go into a line as base64 of their memory: as numbers they would keep the interpreter from requests for long.
_MAX_JSON_VALUES = 1024


class RecordFile(Protocol):
    """An open file. Any method may raise OSError."""

    def write(self, record: bytes) -> int:
        """Add a serialized PredictionLog; returns the bytes it takes."""
        ...

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


def open_record_file(path: Path, format_: LogFormat) -> RecordFile:
    """A new, empty file. Raises OSError."""
    return _JsonLines(path) if format_ == "jsonl" else _TfRecord(path)


class _JsonLines:
    """One PredictionLog a line, in protobuf's JSON with the fields' own names."""

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
    """Turn the typed field of a large tensor of numbers into its tensor_content."""
    if tensor.tensor_content or tensor.string_val or tensor.ByteSize() <= _MAX_JSON_VALUES:
        return
    array = decode_tensor(name, tensor)
    if array.size > _MAX_JSON_VALUES:
        tensor.ParseFromString(encode_tensor(array, as_content=True))
