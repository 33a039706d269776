"""A function of any number of rows made of functions of fixed sizes: rows are padded to the next size, and cut again.

For models that frameworks cannot lower with the number of rows left free. Which size runs is decided in the graph
(tf.switch_case), so each size is a program of its own, as a TPU wants it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf

# Named tensors in by keyword, named tensors out.
TensorFunction: TypeAlias = "Callable[..., Mapping[str, tf.Tensor]]"


class BucketedFunction:
    """Takes tensors by keyword, as the functions it is made of.

    `functions` has one for each size: it takes exactly so many rows of each of `batched`, its inputs with rows, and
    whatever the others are. Outputs whose first dimension is the size are cut to the rows that came.
    """

    def __init__(self, functions: Mapping[int, TensorFunction], batched: tuple[str, ...]) -> None:
        self._functions = dict(sorted(functions.items()))
        self._batched = batched

    def __call__(self, **inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        """In the graph, fails with InvalidArgumentError for no rows, unequal numbers, or more than the largest size."""
        import tensorflow as tf

        sizes = list(self._functions)
        rows = self._count_rows(inputs)
        which = tf.searchsorted(tf.constant(sizes, tf.int32), [rows])[0]
        branches = {index: self._branch(size, inputs, rows) for index, size in enumerate(sizes)}
        outputs: dict[str, tf.Tensor] = tf.switch_case(which, branches)
        return outputs

    def _count_rows(self, inputs: "Mapping[str, tf.Tensor]") -> "tf.Tensor":
        import tensorflow as tf

        rows = tf.shape(inputs[self._batched[0]])[0]
        largest = max(self._functions)
        checks = [
            tf.debugging.assert_positive(rows, message="there are no rows"),
            tf.debugging.assert_less_equal(rows, largest, message=f"at most {largest} rows fit into one batch"),
            *(
                tf.debugging.assert_equal(tf.shape(inputs[name])[0], rows, message="inputs differ in their rows")
                for name in self._batched[1:]
            ),
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return tf.identity(rows)

    def _branch(
        self, size: int, inputs: "Mapping[str, tf.Tensor]", rows: "tf.Tensor"
    ) -> "Callable[[], dict[str, tf.Tensor]]":
        def run() -> "dict[str, tf.Tensor]":
            outputs = self._functions[size](
                **{name: self._pad(name, value, rows, size) for name, value in inputs.items()}
            )
            return {name: _cut(value, rows, size) for name, value in outputs.items()}

        return run

    def _pad(self, name: str, value: "tf.Tensor", rows: "tf.Tensor", size: int) -> "tf.Tensor":
        """Repeat the last row, as servers do: a real row, because a model may divide by its norm."""
        import tensorflow as tf

        if name not in self._batched:
            return value
        padded = tf.gather(value, tf.minimum(tf.range(size), rows - 1))
        padded.set_shape([size, *value.shape[1:]])
        return padded


def _cut(value: "tf.Tensor", rows: "tf.Tensor", size: int) -> "tf.Tensor":
    """Every branch gives a free first dimension, whatever its size: branches have to agree in their shapes."""
    return value[:rows] if value.shape.rank and value.shape[0] == size else value
