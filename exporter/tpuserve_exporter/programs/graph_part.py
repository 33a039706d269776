"""A TensorFlow function as a device part, lowered by XLA's bridge with its variables as arguments."""

from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.programs.buckets import Bucket
from tpuserve_exporter.programs.lowering import LoweredGraph, count_results, export_module, lower_graph
from tpuserve_exporter.programs.unsupported import check_strings, explain
from tpuserve_exporter.programs.weights import GraphWeights
from tpuserve_exporter.signature import Signature

if TYPE_CHECKING:
    import tensorflow as tf


class GraphPart:
    """A device part of `graph`, which takes and returns tensors by name. The caller keeps its weights in memory."""

    def __init__(
        self,
        name: str,
        signature: Signature,
        graph: "tf.types.experimental.ConcreteFunction",
        weights: GraphWeights,
    ) -> None:
        self.name = name
        self.signature = signature
        self._graph = graph
        self._weights = weights
        self.weights: tuple[str, ...] = ()

    def lower(self, bucket: Bucket) -> bytes:
        """Return the program for the bucket's shapes. Raises CannotLower with every unsupported operation."""
        check_strings(self.signature)
        lowered = self._lower_graph(bucket)
        self._check_results(lowered)
        names = [self._weights.name_of(one) for one in lowered.captured]
        self.weights = self.weights or tuple(dict.fromkeys(names))
        if len(names) != len(self.weights) or set(names) != set(self.weights):
            raise CannotLower(
                f"{self.signature.name}: the model uses different weights at {bucket.name} than at other sizes"
            )
        inputs = len(self.signature.inputs)
        order = [*range(inputs), *(inputs + self.weights.index(name) for name in names)]
        return export_module(lowered.module, "device", order)

    def _lower_graph(self, bucket: Bucket) -> LoweredGraph:
        import tensorflow as tf

        inputs = self.signature.inputs.items()
        specs = [tf.TensorSpec(bucket.shape(spec), spec.dtype, name=_argument(name)) for name, spec in inputs]

        def run(*tensors: "tf.Tensor") -> "list[tf.Tensor]":
            outputs = self._graph(**dict(zip(self.signature.inputs, tensors, strict=True)))
            return [outputs[name] for name in self.signature.outputs]

        try:
            return lower_graph(run, specs)
        except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
            raise CannotLower(f"{self.signature.name}: {explain(self._graph, error)}") from error

    def _check_results(self, lowered: LoweredGraph) -> None:
        """Raise CannotLower if the module returns new values of variables in addition to its outputs."""
        if count_results(lowered.module) != len(self.signature.outputs):
            raise CannotLower(
                f"{self.signature.name} changes its own variables when it is called (a counter, a state, training "
                "statistics), but a device program only computes outputs. Export the model in inference mode, or "
                "omit --device-programs"
            )


def _argument(name: str) -> str:
    """Return a valid name of a TensorFlow argument."""
    return "".join(one if one.isalnum() and one.isascii() else "_" for one in f"input_{name}")
