"""The fingerprint of a version. Versions with equal fingerprints compute the same and are served the same way.

It contains a hash of the SavedModel's computation: of every node by its operation and inputs. The bytes of
saved_model.pb differ between exports of one model, because functions and nodes have numbers in their names and maps
have no fixed order. TensorFlow's fingerprint.pb omits the bodies of functions, which hold the whole model, so that it
is equal for relu and tanh with the same variables.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.variables.object_graph import OBJECT_GRAPH_KEY
from tpuserve_exporter.terms.signature import Array
from tpuserve_exporter.version.manifest import PublishedVersion
from tpuserve_exporter.version.warmup import hash_requests
from tpuserve_exporter.version.warmup_records import WARMUP_FILE
from tpuserve_formats.manifest.device import ManifestDevice
from tpuserve_formats.manifest.version import Manifest, ManifestFile, ManifestSignature

if TYPE_CHECKING:
    from tensorflow.core.framework.attr_value_pb2 import AttrValue
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

# Files whose bytes differ between exports of one model. The fingerprint covers their meaning instead.
_OTHER_EACH_TIME = (
    "saved_model.pb", "saved_model.pbtxt", "fingerprint.pb", "variables/",
    "assets.extra/tpuserve/programs/", "assets.extra/tpuserve/host/", WARMUP_FILE.as_posix(),
)  # fmt: skip

# The sizes of the samples depend on the data of the checks, and do not change how the server serves the version.
_OF_THE_CHECKS = {"inputs": {"__all__": {"tried_sizes"}}}
# Fields of `device` with results about programs. They contain times, which differ between exports.
_FOR_PEOPLE = {"preflight", "preflight_together", "numerics"}


def make_fingerprint(
    version: Path,
    signatures: Mapping[str, ManifestSignature],
    compute_dtype: str,
    files: Mapping[str, ManifestFile],
    device: ManifestDevice | None,
) -> str:
    """Hash the version's computation, weights, assets, warm-up requests, and batching configuration.

    The fingerprint excludes the source, the time of the export, and the results of the checks.
    """
    described = {
        "graph": hash_graph(version),
        "signatures": {name: one.model_dump(mode="json", exclude=_OF_THE_CHECKS) for name, one in signatures.items()},
        "compute_dtype": compute_dtype,
        "variables": dict(_hash_variables(version)),
        **({} if device is None else {"device": device.model_dump(mode="json", exclude=_FOR_PEOPLE)}),
        "warmup": hash_requests(version),
        "files": {name: file.sha256 for name, file in files.items() if not name.startswith(_OTHER_EACH_TIME)},
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _hash_variables(version: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of each variable, with one value in memory at a time."""
    import tensorflow as tf

    prefix = find_variables(version)
    if prefix is None:
        return
    reader = tf.train.load_checkpoint(str(prefix))
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        if name != OBJECT_GRAPH_KEY:
            value = np.asarray(reader.get_tensor(name))
            yield name, f"{value.dtype}{shape} {hashlib.sha256(_content(value)).hexdigest()}"


def _content(value: Array) -> bytes | memoryview:
    """Return the value's bytes. Numbers become uint8 first, because Python's buffers do not support bfloat16."""
    if value.dtype == object:
        return repr(value.tolist()).encode()
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def holds(published: PublishedVersion, manifest: Manifest) -> bool:
    """Return whether a published version has the fingerprint in `manifest`, and the file sizes in its own manifest."""
    if manifest.fingerprint is None or published.manifest is None:
        return False
    try:
        theirs = json.loads(published.manifest)
        sizes = {name: file["size_bytes"] for name, file in theirs["files"].items()}
        same = theirs.get("fingerprint") == manifest.fingerprint
    except (ValueError, TypeError, KeyError, AttributeError):  # not a manifest of the exporter
        return False
    return same and all(published.sizes.get(name) == size for name, size in sizes.items())


# Attributes that number objects of one export or configure execution, without effect on the computation. The hash also
# ignores attributes with a leading underscore, which are internal to TensorFlow.
_LEFT_OUT = frozenset({"config_proto", "executor_type", "shared_name", "container", "experimental_debug_info"})
# Collections in graphs of TensorFlow 1 with the operations that fill tables.
_INITIALIZERS = ("legacy_init_op", "saved_model_main_op", "table_initializer")


def hash_graph(version: Path) -> str:
    """Return the SHA-256 of the canonical `saved_model.pb`: its signatures, and every operation that they need."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    binary = version / "saved_model.pb"
    if not binary.is_file():  # hash the text format as written
        return hashlib.sha256((version / "saved_model.pbtxt").read_bytes()).hexdigest()
    saved_model = SavedModel.FromString(binary.read_bytes())
    meta_graphs = sorted(saved_model.meta_graphs, key=lambda one: sorted(one.meta_info_def.tags))
    return _digest(_hash_meta_graph(meta_graph) for meta_graph in meta_graphs)


def _hash_meta_graph(meta_graph: "MetaGraphDef") -> str:
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    parts, roots = sorted(meta_graph.meta_info_def.tags), list[str]()
    for name, signature in sorted(meta_graph.signature_def.items()):
        parts += [name, signature.SerializeToString(deterministic=True).hex()]
        infos = [*signature.inputs.values(), *signature.outputs.values()]
        roots += [node_of(info.name) for info in infos]
    # Signatures do not lead to the operations that restore variables and fill tables.
    roots.append(node_of(meta_graph.saver_def.restore_op_name))
    for key in _INITIALIZERS:
        roots += map(node_of, meta_graph.collection_def[key].node_list.value)
    # Nodes without inputs keep their names, which distinguish two variables of one shape.
    functions = _Functions(meta_graph.graph_def.library.function)
    leaves = {
        name: _digest([name, node.op, *_hash_attributes(node.attr, functions)])
        for name, node in nodes.items()
        if not node.input
    }
    hashes = _hash_nodes(nodes, roots, leaves, functions)
    return _digest([*parts, *(hashes.get(root, "") for root in roots)])


class _Functions:
    """Hashes of a library's functions by their computation."""

    def __init__(self, library: "Iterable[FunctionDef]") -> None:
        self._functions = {function.signature.name: function for function in library}
        self._hashes: dict[str, str] = {}

    def hash_of(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = "itself"
            self._hashes[name] = self._hash(self._functions[name]) if name in self._functions else name
        return self._hashes[name]

    def _hash(self, function: "FunctionDef") -> str:
        arguments = {one.name: f"{index}:{one.type}" for index, one in enumerate(function.signature.input_arg)}
        results = [function.ret[one.name] for one in function.signature.output_arg]
        controls = list(function.control_ret.values())
        nodes = {node.name: node for node in function.node_def}
        hashes = _hash_nodes(nodes, [*map(node_of, results), *controls], arguments, self)
        returned = (_reference(result, hashes) for result in results)
        return _digest([*arguments.values(), *returned, *sorted(hashes.get(name, "") for name in controls)])


def _hash_nodes(
    nodes: "Mapping[str, NodeDef]", roots: Iterable[str], known: Mapping[str, str], functions: _Functions
) -> dict[str, str]:
    """Return `known` and the hashes of the nodes that `roots` need, by name. Graphs are too deep for recursion."""
    hashes, waiting, begun = dict(known), list(roots), set[str]()
    while waiting:
        name = waiting[-1]
        if name in hashes or name not in nodes:
            waiting.pop()
            continue
        sources = map(node_of, nodes[name].input)
        # A node that has begun and has no hash is part of a loop of TensorFlow 1. Its name stands for its hash.
        first = [] if name in begun else [one for one in sources if one not in hashes and one not in begun]
        begun.add(name)
        if first:
            waiting += first
            continue
        hashes[name] = _hash_node(nodes[waiting.pop()], hashes, functions)
    return hashes


def _hash_node(node: "NodeDef", hashes: Mapping[str, str], functions: _Functions) -> str:
    values = [_reference(source, hashes) for source in node.input if not source.startswith("^")]
    controls = sorted(_reference(source, hashes) for source in node.input if source.startswith("^"))
    return _digest([node.op, *values, "after", *controls, *_hash_attributes(node.attr, functions)])


def _reference(tensor: str, hashes: Mapping[str, str]) -> str:
    """Return a reference such as `node`, `node:1`, `node:y:0` or `^node` with the node's hash instead of its name."""
    name, colon, output = tensor.removeprefix("^").partition(":")
    return f"{hashes.get(name, name)}{colon}{output}"


def _hash_attributes(attributes: "Mapping[str, AttrValue]", functions: _Functions) -> list[str]:
    return [
        f"{key}={_hash_attribute(value, functions)}"
        for key, value in sorted(attributes.items())
        if key not in _LEFT_OUT and not key.startswith("_")
    ]


def _hash_attribute(value: "AttrValue", functions: _Functions) -> str:
    called = [value.func] if value.HasField("func") else value.list.func
    if called:
        hashes = ((functions.hash_of(one.name), *_hash_attributes(one.attr, functions)) for one in called)
        return _digest(part for parts in hashes for part in parts)
    return hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()
