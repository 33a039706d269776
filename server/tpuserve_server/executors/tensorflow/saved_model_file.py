"""Reads the file of a SavedModel as serialized bytes, without the interpreter's lock."""

from pathlib import Path
from typing import Final

from google.protobuf import text_format

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.executors.tensorflow.start import tensorflow_modules

_BINARY, _TEXT = "saved_model.pb", "saved_model.pbtxt"
# A graph in pieces, of TensorFlow's proto_splitter. TensorFlow may prefer it to the file that this module reads.
_PIECES = "saved_model.cpb"
# protobuf's limit of a message.
_MAX_BYTES: Final = 2**31 - 1
# The parser of text is slow.
_MAX_TEXT_BYTES: Final = 2**26


def read_saved_model(version: Path) -> bytes:
    """Return the serialized SavedModel of a version, or b"" if it has none: TensorFlow then reports the error. Blocks.

    Raises:
        InvalidArgument: the file cannot be read, or is too large or not a SavedModel. The message has no path.
    """
    if (version / _PIECES).exists():
        raise InvalidArgument(f"this server cannot check {_PIECES}. Save the model as {_BINARY}")
    for name, max_bytes in ((_BINARY, _MAX_BYTES), (_TEXT, _MAX_TEXT_BYTES)):
        path = version / name
        try:
            size_bytes = path.stat().st_size
            if size_bytes > max_bytes:
                raise InvalidArgument(f"{name} has {size_bytes} bytes; the limit is {max_bytes}")
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InvalidArgument(f"{name} cannot be read: {error.strerror}") from error
        return content if name == _BINARY else _serialize(content)
    return b""


def _serialize(text: bytes) -> bytes:
    with tensorflow_modules():
        from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
    try:
        serialized: bytes = text_format.Parse(text, SavedModel()).SerializeToString()
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{_TEXT} is not a SavedModel") from error
    return serialized
