"""A function of any number of rows, made of functions of fixed sizes. It pads rows to the next size and cuts outputs.

It serves models that a framework cannot lower with a free number of rows. The graph chooses the size (tf.switch_case),
so each size is a separate program with fixed shapes, as TPUs require.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf

# Named tensors in by keyword, named tensors out.
TensorFunction: TypeAlias = "Callable[..., Mapping[str, tf.Tensor]]"


class BucketedFunction:
    """A callable that takes tensors by keyword and calls the function of the smallest sufficient size.

    `functions` maps each size to a function, which takes exactly that many rows of each input in `batched` and the
    other inputs unchanged. Outputs whose first dimension is the size are cut to the number of rows in the request.
    """

    def __init__(self, functions: Mapping[int, TensorFunction], batched: tuple[str, ...]) -> None:
        self._functions = dict(sorted(functions.items()))
        self._batched = batched

    def __call__(self, **inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        """Compute the outputs by name.

        The graph raises InvalidArgumentError for zero rows, for unequal numbers of rows, and for more rows than the
        largest size.
        """
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
        """Pad with copies of the last row, as servers do. Rows of zeros could make a model divide by zero."""
        import tensorflow as tf

        if name not in self._batched:
            return value
        padded = tf.gather(value, tf.minimum(tf.range(size), rows - 1))
        padded.set_shape([size, *value.shape[1:]])
        return padded


def _cut(value: "tf.Tensor", rows: "tf.Tensor", size: int) -> "tf.Tensor":
    """Cut an output to `rows`. The first dimension becomes free, because all branches must return the same shapes."""
    return value[:rows] if value.shape.rank and value.shape[0] == size else value
