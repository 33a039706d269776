"""Parses `saved_model.pbtxt` with the parser of TensorFlow's loader.

Python's parser of text protos reads some texts in another way: "\\X66" is 4 characters there, and "f" in C++.
TensorFlow's operation DecodeProto parses texts in C++, without the interpreter's lock.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from tensorflow.python.framework.errors_impl import OpError

from tpuserve_formats.messages.official import CallableOptions, ConfigProto, MetaGraphDef
from tpuserve_formats.varint import varint
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.runtime_folder import runtime_folder
from tpuserve_server.executors.tensorflow.saved_session import SavedSession

_TAG: Final = "text_parser"
_INT64, _STRING = 9, 7
# Fields of SavedModel: their numbers, types, and names (tensorflow/core/protobuf/saved_model.proto).
_SCHEMA_VERSION, _META_GRAPHS = 1, 2
_FIELDS: Final = (("saved_model_schema_version", _INT64), ("meta_graphs", _STRING))


def parse_text(text: bytes) -> bytes:
    """Return the serialized SavedModel of a text. Blocks.

    Raises:
        InvalidArgument: it is not a SavedModel. The message names the file.
    """
    with runtime_folder() as folder:
        (folder.path / "saved_model.pb").write_bytes(_serialize(1, [_parser().SerializeToString()]))
        session = SavedSession(folder.path, (_TAG,), ConfigProto())
    try:
        options = CallableOptions(feed=["text:0"], fetch=["parse:0", "parse:1", "parse:2"])
        sizes, version, meta_graphs = map(np.asarray, session.make_callable(options)((np.array([text], object),)))
    except OpError as error:
        raise InvalidArgument("saved_model.pbtxt is not a SavedModel") from error
    finally:
        session.close()
    # A field without values has one empty value, and the size 0.
    return _serialize(int(version.item()), meta_graphs[0, : sizes[0, 1]])


def _serialize(schema_version: int, meta_graphs: Iterable[bytes]) -> bytes:
    """Return a serialized SavedModel of its parts."""
    parts = [varint(_SCHEMA_VERSION << 3), varint(schema_version)]
    for one in meta_graphs:
        parts += [varint(_META_GRAPHS << 3 | 2), varint(len(one)), one]
    return b"".join(parts)


def _parser() -> MetaGraphDef:
    """Return a graph that parses a text into the fields of SavedModel. Messages in them stay serialized."""
    meta_graph = MetaGraphDef()
    meta_graph.meta_info_def.tags.append(_TAG)
    # The type is not in the declarations of the messages that this package uses.
    nodes: Any = meta_graph.graph_def.node
    text = nodes.add(name="text", op="Placeholder")
    text.attr["dtype"].type = _STRING
    parse = nodes.add(name="parse", op="DecodeProtoV2", input=["text"])
    parse.attr["message_type"].s = b"tensorflow.SavedModel"
    parse.attr["message_format"].s = b"text"
    parse.attr["field_names"].list.s.extend(name.encode() for name, _ in _FIELDS)
    parse.attr["output_types"].list.type.extend(dtype for _, dtype in _FIELDS)
    return meta_graph
