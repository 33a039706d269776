"""Attributes of nodes that make an allowed operation dangerous: files, functions, and bytes that become handles."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from tpuserve_formats.messages.official import AttrValue, NameAttrList, NodeDef

HANDS_FUNCTIONS: Final = "hands functions to functions, which this check cannot follow"
TAKES_ATTRIBUTES: Final = "takes attributes from its caller, which this check cannot read"
FORGES_HANDLES: Final = "makes handles of resources from bytes"

# Operations that have the name of a file as an attribute.
WITH_FILES: Final = frozenset(
    {"DecodeProtoV2", "EncodeProto", "FixedUnigramCandidateSampler", "PrintV2", "SimpleMLLoadModelFromPathWithHandle"}
)
# Operations that make tensors from bytes, with the attribute that has the types of the tensors.
_FROM_BYTES: Final = {
    "Const": "dtype", "DeserializeManySparse": "dtype", "DeserializeSparse": "dtype", "ParseTensor": "out_type",
    "Restore": "dt", "RestoreSlice": "dt", "RestoreV2": "dtypes",
}  # fmt: skip
# Operations whose attributes this check reads.
_SENSITIVE: Final = WITH_FILES | _FROM_BYTES.keys() | {"StaticRegexReplace", "VarHandleOp", "XlaCallModule"}
# DT_RESOURCE and DT_VARIANT (tensorflow/core/framework/types.proto). A variant may contain a resource.
_HANDLES: Final = frozenset({20, 21})
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_]*")


def danger_of_attributes(node: NodeDef) -> str:
    """Return what the attributes make an operation do, such as `reads files`; empty for nothing."""
    if node.op in WITH_FILES:
        return _danger_of_file(node)
    if node.op in _FROM_BYTES:
        kind = node.attr[_FROM_BYTES[node.op]]
        return FORGES_HANDLES if not _HANDLES.isdisjoint((kind.type, *kind.list.type)) else ""
    return ""


def danger_of_calls(node: NodeDef) -> str:
    """Return why this check cannot read the attributes or the calls of a node; empty if it can.

    In a function, an attribute may be a placeholder for an attribute of the call.
    """
    if node.op in _SENSITIVE and any(one.WhichOneof("value") == "placeholder" for one in node.attr.values()):
        return TAKES_ATTRIBUTES
    if any(hands_functions(function.attr.values()) for function in called_by(node)):
        return HANDS_FUNCTIONS
    return ""


def removed_text(node: NodeDef) -> str:
    """Return the text that a StaticRegexReplace removes from its input, or "" if it does anything else."""
    pattern = node.attr["pattern"].s
    return pattern.decode() if not node.attr["rewrite"].s and _PLAIN.fullmatch(pattern) else ""


def hands_functions(values: Iterable[AttrValue]) -> bool:
    """Return whether an attribute of a function is itself a function."""
    return any(value.WhichOneof("value") == "func" or value.list.func for value in values)


def called_by(node: NodeDef) -> Iterator[NameAttrList]:
    """Yield the functions that the attributes of a node name."""
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            yield value.func
        elif kind == "list":
            yield from value.list.func


def _danger_of_file(node: NodeDef) -> str:
    match node.op:
        case "PrintV2":
            return "prints to a file" if node.attr["output_stream"].s.startswith(b"file://") else ""
        case "DecodeProtoV2" | "EncodeProto":
            # Other values are a path (tensorflow/core/util/proto/descriptors.cc). The default is `local://`.
            source = node.attr["descriptor_source"].s
            return "" if source.startswith(b"bytes://") or source in (b"", b"local://") else "reads files"
        case "SimpleMLLoadModelFromPathWithHandle":
            # Begin of the names of the files in the directory that the operation reads.
            return "" if _PLAIN.fullmatch(node.attr["file_prefix"].s) else "reads files"
        case _:
            return "reads files" if node.attr["vocab_file"].s else ""
