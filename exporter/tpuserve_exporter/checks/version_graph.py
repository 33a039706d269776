"""Checks the graph of a written version for operations of training and for Python functions."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.checks.variation import Change
from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.graphs.dependence import Dependence, find_dependence
from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.inspection.operations import find_needed
from tpuserve_exporter.inspection.saved_model import read_meta_graph
from tpuserve_exporter.sources.saved_model.file import read_saved_model
from tpuserve_exporter.sources.tf1.training_mode import GIVE_INFERENCE
from tpuserve_exporter.terms.signature import Tensors, read_signatures
from tpuserve_exporter.terms.texts import first

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

_CALL_OTHERWISE = "call the layer with training=False, or pass on the `training` argument of the caller"
_PUBLISH = "Use --allow-nondeterminism to publish the model anyway"
# The scope into which the graph of a `.meta` file is imported.
_OF_TF1_GRAPH = "graph/"
_STATE = (
    "A server has one model for all clients, so all clients would share the state. Take the state as an input and "
    "return the new state as an output (a Keras RNN: stateful=False, initial_state=, return_state=True)"
)


def find_training(version: Path, samples: Mapping[str, Tensors]) -> dict[str, Dependence]:
    """Return what the outputs of each signature in `samples` depend on, for inputs of the samples' shapes."""
    meta_graph = read_meta_graph(version)
    found = {}
    for name, signature in read_signatures(meta_graph.signature_def).items():
        if name in samples:
            outputs = [spec.graph_name for spec in signature.outputs.values() if spec.graph_name]
            sizes = {
                node_of(signature.inputs[one].graph_name): tuple(value.shape)
                for one, value in samples[name].items()
                if value.ndim
            }
            found[name] = find_dependence(meta_graph.graph_def, outputs, sizes)
    return found


def describe_change(name: str, change: Change, difference: str, training: Dependence) -> str:
    """Explain why answers of signature `name` change, and what to do."""
    if training.random:
        return (
            f"{name} {change}: it draws random numbers in {first(training.random)}. If this is dropout or training "
            f"noise, {_CALL_OTHERWISE}. {_PUBLISH}"
        )
    what = f"{name} {change} ({difference})"
    if training.assigned:
        return f"{what}: it keeps a state that it changes in {first(training.assigned)}. {_STATE}"
    return f"{what}. Its operations do not show why. Look for state, time, or random numbers in the model. {_PUBLISH}"


def describe_statistics(name: str, training: Dependence, *, of_tf1_graph: bool) -> str:
    """Explain that answers of signature `name` depend on batch statistics, and what to do."""
    places = [one.removeprefix(_OF_TF1_GRAPH) for one in training.statistics]
    mend = (
        f"The graph has no variable with their moving average. {GIVE_INFERENCE}"
        if of_tf1_graph
        else f"If this is a batch norm in training mode, {_CALL_OTHERWISE}"
    )
    return (
        f"an answer of {name} depends on the other rows of the batch, because it uses averages over the batch: "
        f"{first(places)}. {mend}. If the rows are one list by design, or if the first dimension is not the batch, "
        "use --allow-batch-statistics"
    )


def describe_harmless(name: str, training: Dependence) -> Iterator[str]:
    """Yield messages for users about a signature whose answers do not change."""
    if training.random:
        yield f"{name} draws random numbers in {first(training.random)}, but its answers were the same each time"
    if training.written:
        yield (
            f"{name} changes variables at each request, in {first(training.written)}, but its answers did not depend "
            "on earlier requests"
        )


_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def check_no_python(version: Path) -> None:
    """Raise CannotLower, with the nodes, if a signature of `version` depends on a Python function.

    The other checks cannot find it, because the process of the export may hold the function.
    """
    found = sorted(
        {
            f"{node.op} (node {node.name})"
            for meta_graph in read_saved_model(version).meta_graphs
            for part in find_needed(meta_graph.graph_def, _outputs(meta_graph))
            for node in part
            if node.op in _PYTHON
        }
    )
    if found:
        raise CannotLower(
            f"the outputs depend on Python functions: {', '.join(found)}. A version holds the graph without their "
            "code, so that no server can run them. Use TensorFlow operations instead, or serve a tensor before them"
        )


def _outputs(meta_graph: "MetaGraphDef") -> Iterator[str]:
    for signature in meta_graph.signature_def.values():
        for output in signature.outputs.values():
            yield from _tensors(output)


def _tensors(info: "TensorInfo") -> Iterator[str]:
    """Yield the names of a tensor, or of the components of a ragged one."""
    if info.name:
        yield info.name
    for component in info.composite_tensor.components:
        yield from _tensors(component)
