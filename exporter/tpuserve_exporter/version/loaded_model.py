"""A written SavedModel, loaded into a session as TensorFlow Serving does."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SamplesUnfit, SessionLoadFailed, TrainingMode, reason_of
from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.models.ragged import mark_ragged
from tpuserve_exporter.sources.saved_model.file import read_saved_model
from tpuserve_exporter.sources.saved_model.graphs import served_graph
from tpuserve_exporter.sources.saved_model.loaded import load_session, run_signature, session_failure
from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors, TensorSpec, read_signatures
from tpuserve_exporter.version.graph_inputs import GraphInputs

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef


class SessionModel:
    """A SavedModel in a v1 session. The session holds the variables, so this is valid only within `open_session`."""

    def __init__(self, session: "tf.compat.v1.Session", signatures: dict[str, Signature], inputs: GraphInputs) -> None:
        self._session = session
        self.signatures = signatures
        self.inputs = inputs

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises tf.errors.OpError if the graph fails, SamplesUnfit for unfit shapes."""
        try:
            return run_signature(self._session, signature, inputs)
        except UnicodeDecodeError as error:
            # The graph refused a string. The error quotes the string, which is not valid UTF-8.
            raise SamplesUnfit(f"{signature.name} cannot take one of its input strings") from error
        except ValueError as error:
            raise SamplesUnfit(f"{signature.name}: {error}") from error

    def evaluate(
        self, part: "GraphDef", tensors: Sequence[str], signature: Signature, inputs: Tensors
    ) -> dict[str, Array]:
        """Compute tensors of a flat graph of this model, by name. Omit those that need other nodes or fail.

        Placeholders, variables and tables are those of the session, by their names.
        """
        import tensorflow as tf

        graph = self._session.graph
        there = {node.name for node in part.node if not node.input and _has(graph, node.name)}
        rest = type(part)()
        rest.versions.CopyFrom(part.versions)
        rest.node.extend(node for node in part.node if node.name not in there)
        taken = there & {node_of(one) for node in rest.node for one in node.input}
        mapped = {f"{name}:0": graph.get_tensor_by_name(f"{name}:0") for name in taken}
        added = [name for name in tensors if node_of(name) not in there]
        try:
            with graph.as_default():
                imported = tf.graph_util.import_graph_def(rest, mapped, list(map(_numbered, added)), name="evaluated")
        except ValueError:
            return {}
        fetches = dict(zip(added, imported, strict=True))
        fetches |= {name: graph.get_tensor_by_name(_numbered(name)) for name in tensors if name not in fetches}
        feeds = {signature.inputs[name].graph_name: value for name, value in inputs.items()}
        found: dict[str, Array] = {}
        for name, tensor in fetches.items():
            with contextlib.suppress(tf.errors.OpError):
                found[name] = self._session.run(tensor, feeds)
        return found


@contextlib.contextmanager
def open_session(path: Path) -> Iterator[SessionModel]:
    """Load `path` into a session while the body runs. Raises SessionLoadFailed."""
    with load_session(path) as (session, meta_graph):
        yield SessionModel(session, _settle_all(meta_graph, session.graph), _inputs(path))


def _has(graph: "tf.Graph", name: str) -> bool:
    with contextlib.suppress(KeyError):
        return len(graph.get_operation_by_name(name).outputs) == 1
    return False


def _numbered(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


class WrittenModel:
    """The graph of a SavedModel without its weights. Its `source` computes the outputs instead."""

    def __init__(self, path: Path, source: Runnable) -> None:
        """Read the graph. Raises SessionLoadFailed."""
        import tensorflow as tf

        self._graph, self._source = tf.Graph(), source
        try:
            meta_graph = _read_meta_graph(path)
            with self._graph.as_default():
                tf.compat.v1.train.import_meta_graph(meta_graph)
        except (tf.errors.OpError, OSError, RuntimeError, ValueError, KeyError) as error:
            raise session_failure(error, path) from error
        self.signatures = _settle_all(meta_graph, self._graph)
        self.inputs = _inputs(path)

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises SamplesUnfit for inputs that the source cannot take, and TrainingMode."""
        try:
            return self._source.run(signature, inputs)
        except TrainingMode:
            raise
        except Exception as error:  # each framework raises its own
            raise SamplesUnfit(f"{signature.name}: {reason_of(error)}") from error

    def makes(self, dtype: str) -> bool:
        """Return whether any operation in the graph or its functions has tensors of `dtype` (TensorFlow's name)."""
        import tensorflow as tf

        graph_def = self._graph.as_graph_def()
        nodes = [*graph_def.node, *(node for fn in graph_def.library.function for node in fn.node_def)]
        wanted = tf.dtypes.as_dtype(dtype).as_datatype_enum
        return any(attr.type == wanted for node in nodes for attr in node.attr.values() if attr.HasField("type"))


def _inputs(path: Path) -> GraphInputs:
    return GraphInputs(path, functools.partial(_read_meta_graph, path))


def _read_meta_graph(path: Path) -> "MetaGraphDef":
    meta_graph = served_graph(read_saved_model(path))
    if meta_graph is None:
        raise ValueError("it has no graph with the tag 'serve'")
    return meta_graph


def _settle_all(meta_graph: "MetaGraphDef", graph: "tf.Graph") -> dict[str, Signature]:
    signatures = read_signatures(meta_graph.signature_def)
    if not signatures:
        raise SessionLoadFailed("the SavedModel has no signatures")
    return mark_ragged({name: _settle(signature, graph) for name, signature in signatures.items()}, meta_graph)


def _settle(signature: Signature, graph: "tf.Graph") -> Signature:
    """Return the signature with the graph's dtypes, and with the graph's shapes if the signature states none.

    Old exporters omitted shapes, which then read as an unknown rank or a scalar, and wrote some wrong dtypes. A session
    uses those of the graph.
    """

    def settle(name: str, spec: TensorSpec) -> TensorSpec:
        if not spec.graph_name:
            raise SessionLoadFailed(
                f"{name!r} of signature {signature.name} is a {spec.dtype}, but servers take and return only dense "
                "tensors, and ragged ones as values and row splits. Save a function that builds the tensor from its "
                "parts (tf.sparse.SparseTensor) and returns tf.sparse.to_dense of it"
            )
        tensor = graph.get_tensor_by_name(spec.graph_name)
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        return replace(spec, dtype=tensor.dtype.base_dtype.name, shape=spec.shape or shape)

    inputs = {name: settle(name, spec) for name, spec in signature.inputs.items()}
    outputs = {name: settle(name, spec) for name, spec in signature.outputs.items()}
    return replace(signature, inputs=inputs, outputs=outputs)
