"""Release of a model's memory while references remain. TensorFlow's caches keep traced functions alive."""

from collections.abc import Iterable
from typing import Any

from tpuserve_exporter.models.weights_check import named_variables


def release_weights(trackables: Iterable[Any]) -> None:
    """Assign an empty value to every variable that the trackables hold. The model is unusable afterwards."""
    import tensorflow as tf

    for _, variable in named_variables(trackables):
        empty = tf.constant([], variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty, validate_shape=False)
