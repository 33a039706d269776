"""Giving a model's memory back while it is still referred to: TensorFlow's caches keep traced functions for long."""

from collections.abc import Iterable
from typing import Any

from tpuserve_exporter.models.weights_check import named_variables


def release_weights(trackables: Iterable[Any]) -> None:
    """Put an empty value into every variable that the trackables hold. The model is of no use afterwards."""
    import tensorflow as tf

    for _, variable in named_variables(trackables):
        empty = tf.constant([], variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty, validate_shape=False)
