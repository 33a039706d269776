"""The leading arithmetic of a model, and the pixel values that it expects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.preprocessing.graph_walk import GraphWalk
from tpuserve_exporter.preprocessing.module_walk import walk_module
from tpuserve_exporter.preprocessing.pixel_values import PixelValues

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, slots=True)
class LeadingArithmetic:
    """The model's first operations on an image: one entry for each operation that takes their result."""

    found: tuple[PixelValues, ...]

    @property
    def is_for_bytes(self) -> bool:
        """Whether every path through the model begins by normalizing values of 0 to 255."""
        return bool(self.found) and all(one.are_of_bytes for one in self.found)

    @property
    def is_for_units(self) -> bool:
        """Whether every path through the model begins by normalizing values of 0 to 1."""
        return bool(self.found) and all(one.are_of_units for one in self.found)

    def __str__(self) -> str:
        """Return the operations of the first path, such as `rescaling/mul: * 0.00392157`, or an empty text."""
        return ", ".join(next((one.operations for one in self.found if one.operations), ()))


def find_leading(
    graph: "tf.types.experimental.ConcreteFunction", inputs: Sequence[str], name: str
) -> LeadingArithmetic:
    """Find the leading arithmetic of the input `name`. `inputs` names the inputs of `graph` in order."""
    placeholders = [tensor.op.name for tensor in graph.inputs]
    captures = dict(zip(placeholders[len(inputs) :], graph.captured_inputs, strict=True))
    by_input = _by_input(graph, placeholders[: len(inputs)], inputs)
    walk = GraphWalk(graph.graph.as_graph_def(), captures, walk_module)
    return LeadingArithmetic(tuple(walk.run(by_input[name])))


def _by_input(
    graph: "tf.types.experimental.ConcreteFunction", placeholders: Sequence[str], inputs: Sequence[str]
) -> dict[str, str]:
    """Map inputs to placeholders. TensorFlow sorts keyword arguments by name and names placeholders after them."""
    import tensorflow as tf

    flat = tf.nest.flatten(graph.structured_input_signature)
    named = {spec.name: placeholder for spec, placeholder in zip(flat, placeholders, strict=True)}
    return {name: named.get(name, placeholder) for name, placeholder in zip(inputs, placeholders, strict=True)}
