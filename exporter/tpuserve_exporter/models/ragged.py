"""Functions of ragged tensors as functions of dense ones, and the record of their row splits in a SavedModel.

The names follow tf.saved_model.save: `ids` holds the values, and `ids_1`, `ids_2` and so on hold the row splits, with
the outermost first. tf.saved_model.save splits a ragged input without a record of it. It writes a ragged output as a
composite tensor, which servers do not support. A version records its row splits in a collection of its MetaGraphDef,
which loaders ignore, and in its manifest.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.served_function import RaggedNames, ServedFunction
from tpuserve_exporter.terms.signature import Signature

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef, TensorInfo
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
    from tensorflow.core.protobuf.struct_pb2 import StructuredValue


def dense_function(function: ServedFunction) -> ServedFunction:
    """Return the same function with values and row splits instead of each ragged input and output.

    A call raises BuilderFailed for other composite outputs.
    """
    import tensorflow as tf

    specs = function.inputs
    ragged = {name: spec for name, spec in specs.items() if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank}
    splits = name_splits(specs, {name: spec.ragged_rank for name, spec in ragged.items()})
    names = RaggedNames({**function.ragged.inputs, **splits})
    dense = dict[str, tf.TensorSpec]()
    for name, spec in specs.items():
        if isinstance(spec, tf.RaggedTensorSpec):
            dense |= _dense_specs(spec, (name, *splits.get(name, ())))
        else:
            dense[name] = spec

    def call(**inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        joined = {name: _join(inputs, name, splits[name]) if name in splits else inputs[name] for name in specs}
        return spread(function.call(**joined), names.outputs)

    return ServedFunction(dense, call, function.trackables, names)


def name_splits(names: Mapping[str, object], ranks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Name the row splits of tensors of these ragged ranks. The new names do not collide with `names`."""
    taken, splits = set(names), dict[str, tuple[str, ...]]()
    for name, rank in ranks.items():
        free = (f"{name}_{number}" for number in count(1))
        splits[name] = tuple(next(one for one in free if one not in taken) for _ in range(rank))
        taken.update(splits[name])
    return splits


def _dense_specs(spec: "tf.RaggedTensorSpec", names: Sequence[str]) -> "dict[str, tf.TensorSpec]":
    import tensorflow as tf

    shape = spec.shape.as_list()
    rows = None if shape[0] is None else shape[0] + 1
    specs = {names[0]: tf.TensorSpec([None, *shape[spec.ragged_rank + 1 :]], spec.dtype, name=names[0])}
    for depth, name in enumerate(names[1:]):
        specs[name] = tf.TensorSpec([rows if depth == 0 else None], spec.row_splits_dtype, name=name)
    return specs


def _join(inputs: "Mapping[str, tf.Tensor]", name: str, splits: Sequence[str]) -> "tf.RaggedTensor":
    """Join values and row splits. Each call validates them: with wrong splits, operations would read out of bounds."""
    import tensorflow as tf

    return tf.RaggedTensor.from_nested_row_splits(inputs[name], [inputs[one] for one in splits], validate=True)


def spread(outputs: Mapping[str, Any], found: dict[str, tuple[str, ...]]) -> "dict[str, tf.Tensor]":
    """Replace ragged outputs by values and row splits, and add the names to `found`. Raises BuilderFailed."""
    import tensorflow as tf

    ragged = {name: value for name, value in outputs.items() if isinstance(value, tf.RaggedTensor)}
    found |= name_splits(outputs, {name: value.ragged_rank for name, value in ragged.items()})
    dense = dict[str, Any]()
    for name, value in outputs.items():
        if name in ragged:
            dense[name] = value.flat_values
            dense |= dict(zip(found[name], value.nested_row_splits, strict=True))
        elif isinstance(value, tf.__internal__.CompositeTensor):
            raise BuilderFailed(
                f"output {name!r} is a {type(value).__name__}, but signatures return only dense and ragged tensors. "
                "Return tf.sparse.to_dense of a sparse one"
            )
        else:
            dense[name] = value
    return dense


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
    from tensorflow.python.saved_model import fingerprinting_utils

    (version / _FILE).write_bytes(saved_model.SerializeToString(deterministic=True))
    fingerprinting_utils.write_fingerprint(str(version))


def _split_outputs(definition: "SignatureDef") -> dict[str, tuple[str, ...]]:
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
