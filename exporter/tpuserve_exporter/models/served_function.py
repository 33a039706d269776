"""What a source computes, in TensorFlow: named tensors in, named tensors out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.weights_release import release_weights
from tpuserve_exporter.signature import Signature, Tensors

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


@dataclass(frozen=True, slots=True)
class ServedFunction:
    """`call` takes each of `inputs` by keyword and returns tensors by the outputs' names.

    `trackables` hold every variable, lookup table and asset that it uses: Keras models, or anything else that
    tf.train.Checkpoint tracks. `ragged` names the row splits among inputs and outputs (models/ragged.py).
    """

    inputs: "Mapping[str, tf.TensorSpec]"
    call: "Callable[..., Mapping[str, tf.Tensor]]"
    trackables: Sequence[Any]
    ragged: RaggedNames = field(default_factory=RaggedNames)

    def trace(self) -> Graph:
        """A new function, and its graph for the inputs. Each trace runs `call` again. Raises BuilderFailed."""
        import tensorflow as tf

        function = tf.function(self.call, autograph=False)
        try:
            return function, function.get_concrete_function(**self.inputs)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise BuilderFailed(f"the model cannot be traced for {self._describe()}: {error}") from error

    def _describe(self) -> str:
        return ", ".join(f"{name}: {spec.dtype.name}{spec.shape}" for name, spec in self.inputs.items())


class TracedReference:
    """The source model's own answers, to compare what was written with.

    Traced, as in training on a TPU, and apart from what is written: operation by operation, bfloat16 would round where
    a graph computes several as one, by as much as a wrong weight might show.
    """

    def __init__(self, function: ServedFunction) -> None:
        self._function = function
        self._traced: tf.types.experimental.ConcreteFunction | None = None

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Outputs by name. `signature` is the one there is."""
        import tensorflow as tf

        if self._traced is None:
            self._traced = self._function.trace()[1]
        specs = self._function.inputs
        tensors = {name: tf.constant(inputs[name], dtype=spec.dtype) for name, spec in specs.items()}
        return {name: value.numpy() for name, value in self._traced(**tensors).items()}

    def release(self) -> None:
        """Give the weights' memory back; it cannot be asked any more."""
        self._traced = None
        release_weights(self._function.trackables)
