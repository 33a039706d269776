"""Errors for graphs that cannot be compiled for a device: every unsupported operation, its place, and advice."""

import re
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CannotLower, reason_of
from tpuserve_exporter.signature import Signature
from tpuserve_exporter.sources.graph_operations import called_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    import tensorflow as tf
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_KERNELS = "XLA_CPU_JIT"
# A compiler takes these as arguments, or TensorFlow removes them before the compilation.
_NO_KERNEL_NEEDED = frozenset({"Placeholder", "VarHandleOp", "_Arg", "_Retval"})
_COMPLAINT = re.compile(r"No registered '(\w+)' OpKernel .*?\{\{node ([^}]+)\}\}")
_MOST_PLACES = 3
_STRINGS = (
    "Move the conversion between strings and numbers to the host part of a signature: --signature NAME=image_bytes, "
    "tf_example, classify or pkg.module:function"
)
# Advice by prefixes of operation names.
_ADVICE = (
    (("DecodeJpeg", "DecodePng", "DecodeImage", "DecodeBmp", "DecodeGif", "DecodeAndCrop", "ExtractJpeg"),
     "Image files are decoded on the host. Remove decoding from the model, and use --signature NAME=image_bytes"),
    (("ParseExample", "ParseSequence", "ParseSingle", "DecodeRaw", "DecodeCSV"),
     "tf.Examples are parsed on the host. Remove parsing from the model, and use --signature NAME=tf_example"),
    (("LookupTable", "HashTable", "MutableHash", "MutableDense", "AnonymousHash", "InitializeTable"),
     "Vocabularies are looked up on the host. Move the lookup to a signature of your own, --signature "
     "NAME=pkg.module:function"),
    (("String", "Static", "Regex", "AsString", "Substr", "Unicode", "EncodeBase64", "DecodeBase64", "ReduceJoin",
      "Wordpiece", "Sentencepiece"),
     _STRINGS),
    (("CombinedNonMaxSuppression", "NonMaxSuppression"),
     "Use tf.image.non_max_suppression_padded with pad_to_max_output_size=True, which can be compiled"),
    (("Sparse",), "Pad sparse tensors and mask the padding. tpuserve_exporter.dense_lookup does this for embeddings"),
    (("Ragged",), "Pad ragged tensors with to_tensor() and a shape, and mask the padding"),
    (("PyFunc", "EagerPyFunc", "Print"), (
        "A device runs no Python and no prints. Remove the operation from the served model"
    )),
    (("BatchFunction",), "The server batches for a device. Export without --batching in-graph"),
)  # fmt: skip


def explain(graph: "tf.types.experimental.ConcreteFunction", error: Exception) -> str:
    """Explain why TensorFlow failed with `error` to lower the graph."""
    found = find_unsupported(graph)
    for operation, node in _COMPLAINT.findall(str(error)):
        if operation not in _NO_KERNEL_NEEDED:
            found.setdefault(operation, [node])
    if not found and "T=DT_STRING" in str(error):
        return f"the model has strings, but a TPU has none. {_STRINGS}"
    if not found:
        return f"cannot lower the model for a TPU: {reason_of(error)[:300]}"
    named = [f"{operation} (in {_places(nodes)})" for operation, nodes in sorted(found.items())]
    advice = dict.fromkeys(_advise(operation) for operation in sorted(found))
    return f"a TPU does not support {', '.join(named)}. {'. '.join(advice)}"


def find_unsupported(graph: "tf.types.experimental.ConcreteFunction") -> dict[str, list[str]]:
    """Find operations that the compiler does not support, each with the names of its nodes in the model."""
    found: dict[str, list[str]] = {}
    for node in _all_nodes(graph):
        if node.op not in _NO_KERNEL_NEEDED and not _is_compiled(node.op):
            found.setdefault(node.op, []).append(node.name)
    return found


def check_strings(signature: Signature) -> None:
    """Raise CannotLower if an input or output has strings."""
    tensors = (("input", signature.inputs), ("output", signature.outputs))
    named = [f"{what} {name!r}" for what, specs in tensors for name, spec in specs.items() if spec.dtype == "string"]
    if named:
        raise CannotLower(f"{signature.name}: {' and '.join(named)} hold(s) strings, but a TPU has none. {_STRINGS}")


def _all_nodes(graph: "tf.types.experimental.ConcreteFunction") -> "Iterator[NodeDef]":
    """Yield the nodes of the graph and of every function that it calls, each once, without the calls themselves."""
    graph_def = graph.graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph_def.library.function}
    called, waiting = set[str](), list(graph_def.node)
    while waiting:
        node = waiting.pop()
        if node.op not in functions:
            yield node
        new = (called_by(node) & functions.keys()) - called
        called |= new
        waiting += [one for name in new for one in functions[name]]


def _is_compiled(operation: str) -> bool:
    """Return whether the operation has a compiler kernel. The first compilation in a process registers the kernels."""
    from tensorflow.python.framework import kernels

    return any(one.device_type == _KERNELS for one in kernels.get_registered_kernels_for_op(operation).kernel)


def _places(nodes: list[str]) -> str:
    """List names of nodes, which contain the layer: `model/decoder/nms/CombinedNonMaxSuppression`."""
    more = f" and {len(nodes) - _MOST_PLACES} more" if len(nodes) > _MOST_PLACES else ""
    return f"{', '.join(nodes[:_MOST_PLACES])}{more}"


def _advise(operation: str) -> str:
    for prefixes, advice in _ADVICE:
        if operation.startswith(prefixes):
            return advice
    return f"Write the model without {operation}, or move it to a signature of your own (docs/how-to/tpu)"
