"""Functions of ragged tensors as functions of dense ones: values, and row splits with the outermost first.

The names follow tf.saved_model.save: `ids` holds the values, and `ids_1`, `ids_2` and so on hold the row splits.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.served_function import RaggedNames, ServedFunction

if TYPE_CHECKING:
    import tensorflow as tf


def dense_function(function: ServedFunction) -> ServedFunction:
    """Return the same function with values and row splits instead of each ragged input and output.

    A call raises BuilderFailed for other composite outputs.
    """
    import tensorflow as tf

    specs = function.inputs
    ragged = {name: spec for name, spec in specs.items() if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank}
    splits = name_splits(specs, {name: spec.ragged_rank for name, spec in ragged.items()})
    names = RaggedNames({**function.ragged.inputs, **splits})
    dense = dict[str, tf.TensorSpec]()
    for name, spec in specs.items():
        if isinstance(spec, tf.RaggedTensorSpec):
            dense |= _dense_specs(spec, (name, *splits.get(name, ())))
        else:
            dense[name] = spec

    def call(**inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        joined = {name: _join(inputs, name, splits[name]) if name in splits else inputs[name] for name in specs}
        return spread(function.call(**joined), names.outputs)

    return ServedFunction(dense, call, function.trackables, names)


def name_splits(names: Mapping[str, object], ranks: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Name the row splits of tensors of these ragged ranks. The new names do not collide with `names`."""
    taken, splits = set(names), dict[str, tuple[str, ...]]()
    for name, rank in ranks.items():
        free = (f"{name}_{number}" for number in count(1))
        splits[name] = tuple(next(one for one in free if one not in taken) for _ in range(rank))
        taken.update(splits[name])
    return splits


def _dense_specs(spec: "tf.RaggedTensorSpec", names: Sequence[str]) -> "dict[str, tf.TensorSpec]":
    import tensorflow as tf

    shape = spec.shape.as_list()
    rows = None if shape[0] is None else shape[0] + 1
    specs = {names[0]: tf.TensorSpec([None, *shape[spec.ragged_rank + 1 :]], spec.dtype, name=names[0])}
    for depth, name in enumerate(names[1:]):
        specs[name] = tf.TensorSpec([rows if depth == 0 else None], spec.row_splits_dtype, name=name)
    return specs


def _join(inputs: "Mapping[str, tf.Tensor]", name: str, splits: Sequence[str]) -> "tf.RaggedTensor":
    """Join values and row splits. Each call validates them: with wrong splits, operations would read out of bounds."""
    import tensorflow as tf

    return tf.RaggedTensor.from_nested_row_splits(inputs[name], [inputs[one] for one in splits], validate=True)


def spread(outputs: Mapping[str, Any], found: dict[str, tuple[str, ...]]) -> "dict[str, tf.Tensor]":
    """Replace ragged outputs by values and row splits, and add the names to `found`. Raises BuilderFailed."""
    import tensorflow as tf

    ragged = {name: value for name, value in outputs.items() if isinstance(value, tf.RaggedTensor)}
    found |= name_splits(outputs, {name: value.ragged_rank for name, value in ragged.items()})
    dense = dict[str, Any]()
    for name, value in outputs.items():
        if name in ragged:
            dense[name] = value.flat_values
            dense |= dict(zip(found[name], value.nested_row_splits, strict=True))
        elif isinstance(value, tf.__internal__.CompositeTensor):
            raise BuilderFailed(
                f"output {name!r} is a {type(value).__name__}, but signatures return only dense and ragged tensors. "
                "Return tf.sparse.to_dense of a sparse one"
            )
        else:
            dense[name] = value
    return dense
