"""The weights that programs take as arguments: their names, and access to their values."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.models.weights_check import named_variables
from tpuserve_exporter.programs.weights_file import Weight

if TYPE_CHECKING:
    import tensorflow as tf


class GraphWeights:
    """The weights that TensorFlow functions capture: variables, and constants from outside of the functions.

    A weight that several functions capture has one name. Iteration lists the weights that `name_of` has named.
    """

    def __init__(self, trackables: Iterable[Any], variables: "Iterable[tf.Variable]" = ()) -> None:
        """Use the names in `trackables` for their variables. Other `variables` keep their own names."""
        named = list(named_variables(trackables))
        known = {id(variable.handle) for _, variable in named}
        named += [(one.name.removesuffix(":0"), one) for one in variables if id(one.handle) not in known]
        self._variables = {id(variable.handle): (name, variable) for name, variable in named}
        self._names: dict[int, str] = {}
        self._weights: dict[str, Weight] = {}
        # The keys are addresses, so captured objects must stay alive as long as this object.
        self._captured: list[Any] = []

    def name_of(self, captured: Any) -> str:  # noqa: ANN401 - a handle or a tensor
        """Return the weight's name in the file. Raises CannotLower for another resource, such as a table."""
        if id(captured) not in self._names:
            self._names[id(captured)] = self._add(captured)
            self._captured.append(captured)
        return self._names[id(captured)]

    def __iter__(self) -> Iterator[Weight]:
        yield from self._weights.values()

    def _add(self, captured: Any) -> str:  # noqa: ANN401
        import tensorflow as tf

        if id(captured) in self._variables:
            wanted, variable = self._variables[id(captured)]
            name = self._unique(wanted)
            shape, dtype = tuple(variable.shape.as_list()), variable.dtype.base_dtype
            self._weights[name] = Weight(name, _dtype_name(dtype), shape, lambda: np.asarray(variable.numpy()))
            return name
        if captured.dtype in (tf.resource, tf.variant):
            raise CannotLower(
                "the model looks up a table or has another resource that is not a variable, but a TPU has none. "
                "Move the lookup to the host part of a signature, --signature NAME=pkg.module:function"
            )
        name = self._unique("constant")
        shape = tuple(captured.shape.as_list())
        self._weights[name] = Weight(name, _dtype_name(captured.dtype), shape, lambda: np.asarray(captured.numpy()))
        return name

    def _unique(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._weights:
            name, count = f"{wanted}_{count}", count + 1
        return name


def _dtype_name(dtype: "tf.DType") -> str:
    return str(np.dtype(dtype.as_numpy_dtype).name)
