"""The function of a source in TensorFlow: named tensors in, named tensors out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tpuserve_exporter.errors import BuilderFailed, reason_of
from tpuserve_exporter.models.weights_check import release_weights
from tpuserve_exporter.terms.signature import Signature, Tensors

if TYPE_CHECKING:
    import tensorflow as tf

Graph: TypeAlias = "tuple[tf.types.experimental.PolymorphicFunction, tf.types.experimental.ConcreteFunction]"
# Names of row splits, the outermost first, by the name of the values that they split.
RowSplits: TypeAlias = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class RaggedNames:
    """Row splits of the ragged inputs and outputs of a function. Its first call fills `outputs`."""

    inputs: RowSplits = field(default_factory=dict)
    outputs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)


# A size of images, in an example of an option.
_EXAMPLE_SIZE = 64


@dataclass(frozen=True, slots=True)
class ServedFunction:
    """A model as `call`, which takes each of `inputs` by keyword and returns tensors by output name.

    `trackables` hold every variable, lookup table and asset of the function. They are Keras models or other objects
    that tf.train.Checkpoint tracks. `ragged` names the row splits among inputs and outputs (models/ragged.py).
    """

    inputs: "Mapping[str, tf.TensorSpec]"
    call: "Callable[..., Mapping[str, tf.Tensor]]"
    trackables: Sequence[Any]
    ragged: RaggedNames = field(default_factory=RaggedNames)

    def trace(self) -> Graph:
        """Return a new tf.function and its graph for the inputs. Each trace runs `call` again. Raises BuilderFailed."""
        import tensorflow as tf

        function = tf.function(self.call, autograph=False)
        try:
            return function, function.get_concrete_function(**self.inputs)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            # TensorFlow adds five sentences on tf.function.
            sentence = reason_of(error).partition(" You can attempt")[0].removesuffix(".")
            reason = f"{sentence}{self._advise(error)}"
            raise BuilderFailed(f"cannot trace the model for {self._describe()}: {reason}") from error

    def _describe(self) -> str:
        return ", ".join(f"{name}: {spec.dtype.name}{spec.shape}" for name, spec in self.inputs.items())

    def _advise(self, error: Exception) -> str:
        """Return advice for code that computes with sizes as Python numbers, if sizes other than the batch are free."""
        import tensorflow as tf

        free = [name for name, spec in self.inputs.items() if None in spec.shape.as_list()[1:]]
        if not free or not (isinstance(error, tf.errors.OperatorNotAllowedInGraphError) or "NoneType" in str(error)):
            return ""
        spec = self.inputs[free[0]]
        sizes = ["batch", *(str(size or _EXAMPLE_SIZE) for size in spec.shape.as_list()[1:])]
        return (
            f". The code needs fixed sizes. Give them, such as --input '{free[0]}:{spec.dtype.name}[{','.join(sizes)}]'"
        )


class TracedReference:
    """The source model, to compare the written version's outputs with.

    It runs as a separately traced graph, as in TPU training. Eager bfloat16 operations round between operations that a
    graph fuses, and the difference may be as large as that of a wrong weight.
    """

    def __init__(self, function: ServedFunction) -> None:
        self._function = function
        self._traced: tf.types.experimental.ConcreteFunction | None = None

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. The model has one signature, so it ignores `signature`."""
        import tensorflow as tf

        if self._traced is None:
            self._traced = self._function.trace()[1]
        specs = self._function.inputs
        tensors = {name: tf.constant(inputs[name], dtype=spec.dtype) for name, spec in specs.items()}
        # Unlike numpy(), this makes no copy: tensors do not change.
        return {name: np.asarray(value) for name, value in self._traced(**tensors).items()}

    def release(self) -> None:
        """Release the weights' memory. The caller must not call `run` afterwards."""
        self._traced = None
        release_weights(self._function.trackables)
