"""Reads a SavedModel's graphs before any code runs them, and reports damage with advice."""

from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.graph_operations import check_known

if TYPE_CHECKING:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel


def read_saved_model(source: Path) -> "SavedModel":
    """Read `saved_model.pb` or `saved_model.pbtxt`. Raises SourceUnreadable if it is missing or damaged."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    binary, text = source / "saved_model.pb", source / "saved_model.pbtxt"
    if not binary.is_file() and not text.is_file():
        raise SourceUnreadable(f"{source.name} is not a SavedModel: it contains no saved_model.pb")
    saved = SavedModel()
    try:
        if binary.is_file():
            saved.ParseFromString(binary.read_bytes())
        else:
            text_format.Parse(text.read_text(encoding="utf-8"), saved)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        name = binary.name if binary.is_file() else text.name
        raise SourceUnreadable(
            f"cannot read {source.name}/{name}: it is truncated or not a SavedModel. Copy or save it again"
        ) from error
    except OSError as error:
        raise SourceUnreadable(f"cannot read {source.name}: {error.strerror}") from error
    return saved


def check_whole(source: Path, saved: "SavedModel") -> None:
    """Raise SourceUnreadable if files of variables are missing or TensorFlow does not know an operation."""
    for meta_graph in saved.meta_graphs:
        if meta_graph.saver_def.restore_op_name and find_variables(source) is None:
            raise SourceUnreadable(
                f"{source.name} has no values for its variables (variables/variables.index and .data files). Copy or "
                "save it again"
            )
        check_known(meta_graph.graph_def)
