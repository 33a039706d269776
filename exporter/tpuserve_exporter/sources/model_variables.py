"""The variables of a model that was built, whatever it was built with, ready to be met with stored ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """`node` is what stands for it in the model's object graph: Keras' wrapper, or the TensorFlow variable itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    node: Any
    variable: "tf.Variable"

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def model_variables(model: Any) -> list[ModelVariable]:  # noqa: ANN401 - a Keras 3 model, or any tf.Module
    """Weights of a Keras model (no generators' state, no metrics), or variables that a checkpoint of another would hold.

    A tf.Module's own list of variables lacks those of objects that are none: of embedding tables of a TPU, for one.
    """
    import keras
    import tensorflow as tf

    if isinstance(model, keras.Model):
        return [ModelVariable(one.path, str(one.dtype), tuple(one.shape), one, one.value) for one in model.weights]
    tracked = [one for one in tf.train.TrackableView(model).descendants() if isinstance(one, tf.Variable)]
    variables = getattr(model, "weights", None) or list({id(one): one for one in tracked}.values())
    return [ModelVariable(one.name.removesuffix(":0"), one.dtype.name, tuple(one.shape), one, one) for one in variables]
