"""Reference: what an operation of the zoo returns in TensorFlow itself, without a server."""

from collections.abc import Callable
from functools import partial

import numpy as np
import tensorflow as tf

from tests.zoo.catalogue.operation import Operation
from tests.zoo.fork import Ended, Fork, Hung
from tests.zoo.sandbox import PATIENCE_S
from tpuserve_server.core.terms.types import Array, Tensors

Outputs = dict[str, Array]


class Reference(Fork):
    """An operation in a separate process, which a kernel may end."""

    def __init__(self, operation: Operation) -> None:
        """Take the operation."""
        super().__init__(partial(_open_operation, operation))

    def outputs(self, inputs: Tensors) -> Outputs | None:
        """Return the outputs, or None if TensorFlow refuses the inputs when it sees their shapes."""
        try:
            found: Outputs | None = self.ask(inputs, PATIENCE_S)
        except (Hung, Ended):
            return None
        return found


def _open_operation(operation: Operation) -> Callable[[Tensors], Outputs | None]:
    def run(inputs: Tensors) -> Outputs | None:
        try:
            result = operation.build(**{name: tf.constant(value) for name, value in inputs.items()})
        except (tf.errors.OpError, ValueError, TypeError):
            return None
        outputs = result if isinstance(result, dict) else {"y": result}
        # A string of rank 0 is bytes.
        return {name: np.asarray(value.numpy()) for name, value in outputs.items()}

    return run
