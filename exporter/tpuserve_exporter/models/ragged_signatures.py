"""Row splits in the signatures of a SavedModel: functions to find and record them.

tf.saved_model.save splits a ragged input without a record of it. It writes a ragged output as a composite tensor, which
servers do not support. A version records its row splits in a collection of its MetaGraphDef, which loaders ignore, and
in its manifest.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.models.ragged import name_splits
from tpuserve_exporter.models.served_function import RaggedNames
from tpuserve_exporter.terms.signature import Signature

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef, TensorInfo
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
    from tensorflow.core.protobuf.struct_pb2 import StructuredValue

COLLECTION = "tpuserve_row_splits"
_FILE = "saved_model.pb"
# The number that TensorFlow appends to the name of each trace of a function.
_TRACE = re.compile(r"_\d+$")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def read_row_splits(meta_graph: "MetaGraphDef") -> dict[str, RaggedNames]:
    """Read row splits by signature from the collection, or else from TensorFlow's record of the saved functions."""
    if COLLECTION in meta_graph.collection_def:
        record = json.loads(meta_graph.collection_def[COLLECTION].bytes_list.value[0])
        return {name: RaggedNames(_tuples(one["inputs"]), _tuples(one["outputs"])) for name, one in record.items()}
    if not meta_graph.object_graph_def.concrete_functions:
        return {}  # TensorFlow 1 has no ragged tensors in signatures.
    found = {
        name: RaggedNames(_find_inputs(meta_graph, one, "RaggedTensorSpec"))
        for name, one in meta_graph.signature_def.items()
    }
    return {name: names for name, names in found.items() if names}


def list_sparse(meta_graph: "MetaGraphDef") -> Iterator[str]:
    """Yield a note for the user about each sparse input."""
    if not meta_graph.object_graph_def.concrete_functions:
        return
    for signature, definition in meta_graph.signature_def.items():
        for indices, rest in _find_inputs(meta_graph, definition, "SparseTensorSpec").items():
            yield (
                f"{signature} takes a sparse tensor in three parts: clients send its indices as {indices!r}, its "
                f"values as {rest[0]!r} and its dense shape as {rest[1]!r}. Made-up parts seldom fit together. Use "
                "real inputs with --check samples.npz"
            )


def mark_ragged(signatures: Mapping[str, Signature], meta_graph: "MetaGraphDef") -> dict[str, Signature]:
    """Add their row splits to the signatures of a MetaGraphDef."""
    ragged = read_row_splits(meta_graph)
    return {
        name: one.with_row_splits(ragged[name].inputs, ragged[name].outputs) if name in ragged else one
        for name, one in signatures.items()
    }


def write_row_splits(version: Path, names: Mapping[str, RaggedNames]) -> None:
    """Record the row splits in a written SavedModel. Without any, leave the file unchanged."""
    ragged = {name: one for name, one in names.items() if one}
    if not ragged:
        return
    saved_model = _read(version)
    _record(saved_model.meta_graphs[0], ragged)
    _write(version, saved_model)


def settle_row_splits(version: Path) -> None:
    """Write a copied SavedModel's ragged outputs as values and row splits, and record all row splits."""
    if not (version / _FILE).is_file():
        return
    saved_model, changed = _read(version), False
    for meta_graph in saved_model.meta_graphs:
        if COLLECTION in meta_graph.collection_def:
            continue
        names = read_row_splits(meta_graph)
        for name, definition in meta_graph.signature_def.items():
            if outputs := _split_outputs(definition):
                names[name] = RaggedNames(names.get(name, RaggedNames()).inputs, outputs)
        if names:
            _record(meta_graph, names)
            changed = True
    if changed:
        _write(version, saved_model)


def _tuples(lists: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(one) for name, one in lists.items()}


def _record(meta_graph: "MetaGraphDef", names: Mapping[str, RaggedNames]) -> None:
    record = {name: {"inputs": one.inputs, "outputs": one.outputs} for name, one in names.items()}
    meta_graph.collection_def[COLLECTION].bytes_list.value[:] = [json.dumps(record, sort_keys=True).encode()]


def _read(version: Path) -> "SavedModel":
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    return SavedModel.FromString((version / _FILE).read_bytes())


def _write(version: Path, saved_model: "SavedModel") -> None:
    """Write the file and recompute its fingerprint."""
    from tensorflow.python.saved_model import fingerprinting_utils

    (version / _FILE).write_bytes(saved_model.SerializeToString(deterministic=True))
    fingerprinting_utils.write_fingerprint(str(version))


def _split_outputs(definition: "SignatureDef") -> dict[str, tuple[str, ...]]:
    """Split the ragged outputs of a signature into values and row splits."""
    from tensorflow.core.protobuf.struct_pb2 import TypeSpecProto

    ragged = {
        name: list(info.composite_tensor.components)
        for name, info in definition.outputs.items()
        if info.composite_tensor.type_spec.type_spec_class == TypeSpecProto.RAGGED_TENSOR_SPEC
    }
    splits = name_splits(definition.outputs, {name: len(parts) - 1 for name, parts in ragged.items()})
    for name, parts in ragged.items():
        for one, part in zip((name, *splits[name]), parts, strict=True):
            definition.outputs[one].CopyFrom(part)
    return splits


def _find_inputs(meta_graph: "MetaGraphDef", definition: "SignatureDef", kind: str) -> dict[str, tuple[str, ...]]:
    """Find the inputs that are parts of composite tensors of `kind`.

    TensorFlow wraps each saved function in a function of dense tensors, and records the arguments of the wrapped one.
    """
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    functions = {one.signature.name: one for one in meta_graph.graph_def.library.function}
    fed = {info.name.partition(":")[0]: name for name, info in definition.inputs.items()}
    for name in {info.name.partition(":")[0] for info in _dense_infos(definition)} & nodes.keys():
        call = nodes[name]
        wrapper = functions.get(call.attr["f"].func.name) if call.op in _CALLS else None
        if wrapper is None:
            continue
        sources = {
            argument.name: fed.get(source.partition(":")[0])
            for argument, source in zip(wrapper.signature.input_arg, call.input, strict=False)
        }
        for inner in (node for node in wrapper.node_def if node.op in _CALLS):
            origins = [sources.get(source.partition(":")[0]) for source in inner.input]
            found = [_pair(one, origins, kind) for one in _list_arguments(meta_graph, inner.attr["f"].func.name)]
            if found and all(one == found[0] for one in found):
                return found[0]
    return {}


def _list_arguments(meta_graph: "MetaGraphDef", function: str) -> "list[StructuredValue]":
    """Return the arguments of a function, or those of all its traces if saving traced it again."""
    recorded = meta_graph.object_graph_def.concrete_functions
    base = _TRACE.sub("", function)
    names = [function] if function in recorded else [name for name in recorded if _TRACE.sub("", name) == base]
    return [recorded[name].canonicalized_input_signature for name in names]


def _dense_infos(definition: "SignatureDef") -> "Iterator[TensorInfo]":
    for info in definition.outputs.values():
        yield from info.composite_tensor.components or (info,)


def _pair(arguments: "StructuredValue", origins: Sequence[str | None], kind: str) -> dict[str, tuple[str, ...]]:
    """Map the input of the first part of each argument of `kind` to the inputs of its other parts.

    `given` names the input of each part of all arguments.
    """
    import tensorflow as tf
    from tensorflow.python.saved_model import nested_structure_coder

    found, at = dict[str, tuple[str, ...]](), 0
    try:
        specs = tf.nest.flatten(nested_structure_coder.decode_proto(arguments))
    except Exception:  # types of a library that is not imported here
        return {}
    for spec in specs:
        if not isinstance(spec, tf.TypeSpec):
            continue
        count = len(tf.nest.flatten(spec, expand_composites=True))
        parts, at = origins[at : at + count], at + count
        if type(spec).__name__ == kind and count > 1 and None not in parts:
            first, *others = [one for one in parts if one is not None]
            found[first] = tuple(others)
    return found
