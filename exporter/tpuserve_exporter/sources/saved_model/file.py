"""Reads a SavedModel's graphs before any code runs them, and reports damage with advice."""

from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.graphs.graph_operations import check_known
from tpuserve_exporter.sources.checkpoint_path import find_variables

if TYPE_CHECKING:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

_BINARY, _TEXT = "saved_model.pb", "saved_model.pbtxt"


def read_saved_model(source: Path) -> "SavedModel":
    """Read `saved_model.pb` or `saved_model.pbtxt`. Raises SourceUnreadable if it is missing or damaged."""
    return parse_saved_model(source, read_content(source))


def parse_saved_model(source: Path, content: bytes) -> "SavedModel":
    """Parse the content of `source`. Raises SourceUnreadable if it is damaged."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        return SavedModel.FromString(content)
    except DecodeError as error:
        raise _unreadable(source / _BINARY) from error


def read_content(source: Path) -> bytes:
    """Return `saved_model.pb`, or `saved_model.pbtxt` serialized. Raises SourceUnreadable as above."""
    binary, text = source / _BINARY, source / _TEXT
    try:
        if binary.is_file():
            return binary.read_bytes()
        if text.is_file():
            return _serialize(text)
    except OSError as error:
        raise SourceUnreadable(f"cannot read {source.name}: {error.strerror}") from error
    raise SourceUnreadable(f"{source.name} is not a SavedModel: it contains no {_BINARY}")


def _serialize(text: Path) -> bytes:
    from google.protobuf import text_format
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        serialized: bytes = text_format.Parse(text.read_text(encoding="utf-8"), SavedModel()).SerializeToString()
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise _unreadable(text) from error
    return serialized


def _unreadable(file: Path) -> SourceUnreadable:
    return SourceUnreadable(
        f"cannot read {file.parent.name}/{file.name}: it is truncated or not a SavedModel. Copy or save it again"
    )


def check_whole(source: Path, saved: "SavedModel") -> None:
    """Raise SourceUnreadable if files of variables are missing or TensorFlow does not know an operation."""
    for meta_graph in saved.meta_graphs:
        if meta_graph.saver_def.restore_op_name and find_variables(source) is None:
            raise SourceUnreadable(
                f"{source.name} has no values for its variables (variables/variables.index and .data files). Copy or "
                "save it again"
            )
        check_known(meta_graph.graph_def)
