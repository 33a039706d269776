"""The variables of a built model of any framework, for the match with stored variables."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.terms.restore_report import ArraySpec

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """One variable. `node` is its object in the model's object graph: Keras' wrapper, or the TensorFlow variable."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    node: Any
    variable: "tf.Variable"

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.dtype, self.shape)


def model_variables(model: Any) -> list[ModelVariable]:  # noqa: ANN401 - a Keras model, or any tf.Module
    """Return the variables that a checkpoint of the model holds, in the model's order.

    Keras layers give their weights, without the state of random generators. A tf.Module's own list of variables lacks
    those of objects that are not modules, such as TPU embedding tables and Keras 3 objects.
    """
    return [_describe(variable) for variable in _distinct(_walk(model))]


def _walk(model: Any) -> Iterator[Any]:  # noqa: ANN401 - anything that tf.train.Checkpoint tracks
    import tensorflow as tf

    seen, queue = {id(model)}, [model]
    for thing in queue:
        weights = getattr(thing, "weights", None)
        if isinstance(thing, tf.Variable):
            yield thing
        elif isinstance(weights, list):
            yield from weights
        else:
            children = [one for one in tf.train.TrackableView.children(thing).values() if id(one) not in seen]
            seen |= {id(one) for one in children}
            queue += children


def _distinct(variables: Iterable[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def _describe(variable: Any) -> ModelVariable:  # noqa: ANN401 - a variable of Keras 3 or of TensorFlow
    import keras

    if isinstance(variable, keras.Variable):
        return ModelVariable(variable.path, str(variable.dtype), tuple(variable.shape), variable, variable.value)
    name = variable.name.removesuffix(":0")
    return ModelVariable(name, variable.dtype.name, tuple(variable.shape), variable, variable)
