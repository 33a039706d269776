"""Reads a SavedModel's graphs before any code runs them, and refuses damage and operations that servers refuse."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tpuserve_exporter.errors import SourceUnreadable, UnsafeOperation
from tpuserve_exporter.graphs.graph_walk import check_known
from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.saved_model.graphs import SERVED
from tpuserve_formats.errors import FormatError
from tpuserve_formats.safety.graph import read_graphs
from tpuserve_formats.safety.screening import (
    BadAsset,
    Finding,
    describe_findings,
    screen_nodes,
    screen_saved_model,
)
from tpuserve_formats.safety.screening import operations_of as refused_operations
from tpuserve_formats.safety.unassigned import State, explain_unassigned, find_unassigned

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

BINARY: Final = "saved_model.pb"
TEXT: Final = "saved_model.pbtxt"


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
        raise _unreadable(source / BINARY) from error


def read_content(source: Path) -> bytes:
    """Return `saved_model.pb`, or `saved_model.pbtxt` serialized. Raises SourceUnreadable as above."""
    binary, text = source / BINARY, source / TEXT
    try:
        if binary.is_file():
            return binary.read_bytes()
        if text.is_file():
            return _serialize(text)
    except OSError as error:
        raise SourceUnreadable(f"cannot read {source.name}: {error.strerror}") from error
    raise SourceUnreadable(f"{source.name} is not a SavedModel: it contains no {BINARY}")


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


def find_unsafe(saved_model: Path) -> list[Finding]:
    """Return the operations of a SavedModel's directory that servers refuse.

    Raises:
        SourceUnreadable: if the graph is missing or damaged.
        UnsafeOperation: if it names files outside the directory.
    """
    return _find_unsafe(saved_model.name, read_content(saved_model))


def _find_unsafe(name: str, content: bytes) -> list[Finding]:
    from google.protobuf.message import DecodeError

    try:
        return screen_saved_model(content)
    except (FormatError, DecodeError) as error:
        raise SourceUnreadable(f"cannot read {name}: it is truncated or not a SavedModel") from error
    except BadAsset as error:
        raise UnsafeOperation(f"{name} is unsafe: {error}. Save the model again") from error


Unassigned: TypeAlias = Mapping[str, tuple[State, ...]]


def find_unassigned_in(content: bytes, *, restores: bool = True) -> Unassigned:
    """Return what signatures of a serialized SavedModel read and nothing assigns, by signature.

    `restores` is False if the SavedModel has no files of variables. Only the graph for servers counts.
    """
    graphs = [one for one in read_graphs(content) if set(one.rest.meta_info_def.tags) == set(SERVED)]
    return {name: states for one in graphs for name, states in find_unassigned(one, restores=restores).items()}


# What to do about variables and tables without a value.
SAVE_ALL: Final = (
    "Save the model again with all of its variables, and a graph of TensorFlow 1 with tables also with "
    "main_op=tf.compat.v1.tables_initializer()"
)


def check_assigned(version: Path) -> None:
    """Raise SourceUnreadable for variables and tables that a version's signatures read and that have no value."""
    if found := find_unassigned_in(read_content(version), restores=find_variables(version) is not None):
        raise SourceUnreadable(f"the version cannot answer: {explain_unassigned(found)}. {SAVE_ALL}")


def check_source(name: str, content: bytes, allowed: Collection[str]) -> None:
    """Check a serialized SavedModel before it is loaded, except for Python functions. Raises as `find_unsafe`."""
    refuse(name, _find_unsafe(name, content), {*allowed, *PYTHON})


def check_operations(version: Path, allowed: Collection[str]) -> list[Finding]:
    """Return the operations of a version that only `allowed` permits. Raises UnsafeOperation for others."""
    findings = find_unsafe(version)
    refuse("the version", findings, allowed)
    return findings


def operations_of(version: Path) -> set[str]:
    """Return the operations of a version's graphs and of the functions that they call."""
    return set[str]().union(*(one.operations() for one in read_graphs(read_content(version))))


# A source without the process that made its Python functions cannot run them. The check of the version refuses them.
PYTHON: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def check_graph(name: str, graph_def: "GraphDef", allowed: Collection[str]) -> None:
    """Check a graph all of whose nodes run, except for Python functions. Raises UnsafeOperation."""
    refuse(name, screen_nodes(graph_def.SerializeToString()), {*allowed, *PYTHON})


def refuse(name: str, findings: Sequence[Finding], allowed: Collection[str]) -> None:
    """Raise UnsafeOperation for findings, unless `allowed` has all of their operations."""
    refused = [one for one in findings if one.operation not in allowed]
    if refused:
        names = refused_operations(refused)
        options = " ".join(f"--allow-op {one}" for one in names)
        raise UnsafeOperation(
            f"{name} has operations that servers refuse: {describe_findings(refused)}. Build the model without "
            f"them. If you trust its author, use {options}; servers then need --allowed_ops={','.join(names)}",
            operations=[str(one) for one in refused],
        )
