"""Names, dtypes and shapes of a model's inputs, from the model or from --input, and names of its outputs."""

import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_Output = TypeVar("_Output")
# Automatic names of Keras. They differ from build to build, so signatures do not use them.
_AUTOMATIC_INPUT = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?")


def input_specs(model: "keras.Model", options: ModelOptions) -> "tuple[Any, dict[str, tf.TensorSpec]]":
    """Return the structure of the model's inputs, and a spec for each of its leaves by name. Raises OptionConflict."""
    import keras
    import tensorflow as tf

    structure = _known_inputs(model)
    if structure is None:
        return _option_specs(options)
    leaves = keras.tree.flatten(structure)
    names = _input_names(structure, leaves, options)
    check_names(names)
    namings = options.inputs or (InputNaming(""),) * len(leaves)
    specs = {
        name: _narrow(
            _ragged_spec(name, leaf, one) or tf.TensorSpec(_served_shape(model, leaf), leaf.dtype, name=name), one
        )
        for name, leaf, one in zip(names, leaves, namings, strict=True)
    }
    return structure, specs


def _served_shape(model: "keras.Model", leaf: Any) -> "tuple[int | None, ...]":  # noqa: ANN401 - untyped Keras
    """Return the shape of a dense input, with a free batch where only training data has fixed it.

    Keras builds a Sequential model without `keras.Input` from the first batch of `fit`, and keeps its number of rows.
    A stateful layer has one state for each of these rows, so their number stays.
    """
    import keras

    shape: tuple[int | None, ...] = leaf.shape
    is_from_data = isinstance(model, keras.Sequential) and _AUTOMATIC_INPUT.fullmatch(leaf.name)
    if is_from_data and not any(getattr(layer, "stateful", False) for layer in model.layers):
        return (None, *shape[1:])
    return shape


def _ragged_spec(name: str, leaf: Any, naming: InputNaming) -> "tf.RaggedTensorSpec | None":  # noqa: ANN401 - untyped Keras
    """Return the spec of a ragged input of Keras 3 or 2, or None if the input is dense.

    Raises OptionConflict for a sparse input, and for a ragged one if --input has a shape.
    """
    import tensorflow as tf

    own = getattr(leaf, "type_spec", None)
    if getattr(leaf, "sparse", False) or isinstance(own, tf.SparseTensorSpec):
        raise OptionConflict(
            f"input {name!r} is sparse, but signatures take only dense and ragged tensors. Build the model with "
            "keras.Input(sparse=False) to serve it"
        )
    if getattr(leaf, "ragged", False) is not True and not isinstance(own, tf.RaggedTensorSpec):
        return None
    if naming.shape is not None:
        raise OptionConflict(
            f"--input {name} describes a shape, but the model's input is ragged and keeps its own. Use --input {name}"
        )
    if isinstance(own, tf.RaggedTensorSpec):
        return own
    return tf.RaggedTensorSpec(leaf.shape, leaf.dtype, leaf.ragged_rank or 1)


def _narrow(known: Any, naming: InputNaming) -> Any:  # noqa: ANN401 - a spec of a dense or a ragged tensor
    """Return the model's spec with free dimensions fixed to the sizes from --input. Raises OptionConflict."""
    import tensorflow as tf

    if naming.dtype is None or naming.shape is None:
        return known
    wanted = option_spec(naming)
    if wanted.dtype != known.dtype or not _fits(wanted.shape.as_list(), known.shape.as_list()):
        raise OptionConflict(f"--input describes {describe_spec(wanted)}, but the model takes {describe_spec(known)}")
    return tf.TensorSpec(wanted.shape, known.dtype, name=known.name)


def _fits(wanted: "list[int | None]", known: "list[int | None]") -> bool:
    return len(wanted) == len(known) and all(have in (None, want) for want, have in zip(wanted, known, strict=True))


def describe_spec(spec: "tf.TensorSpec") -> str:
    """Return the spec as text: `ids: int32[?, 64]`."""
    dims = ", ".join("?" if dim is None else str(dim) for dim in spec.shape.as_list())
    return f"{spec.name}: {spec.dtype.name}[{dims}]"


def check_names(names: "list[str]") -> None:
    """Raise OptionConflict for repeated names and for names that are no valid Python arguments.

    TensorFlow passes the inputs of a served function as keyword arguments.
    """
    check_distinct("input", names)
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
            raise OptionConflict(
                f"{name!r} cannot be the name of an input in a signature. Rename each input with --input NAME, of "
                "letters, digits and _"
            )


def check_distinct(what: str, names: "Sequence[str]") -> None:
    """Raise OptionConflict for a repeated name. One tensor would silently replace the other."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise OptionConflict(
            f"several {what}s have the name {', '.join(map(repr, twice))}. Name each with --{what} NAME"
        )


def name_outputs(names: "Sequence[str]", outputs: "Sequence[_Output]", of: str = "model") -> "dict[str, _Output]":
    """Return the outputs of a model by name. Raises OptionConflict for too many or few names, or equal ones."""
    if len(names) != len(outputs):
        raise OptionConflict(f"there are {len(names)} --output options, but the {of} has {len(outputs)} output(s)")
    check_distinct("output", names)
    return dict(zip(names, outputs, strict=True))


def number_outputs(count: int) -> list[str]:
    """Return the names of outputs that the model does not name."""
    return ["outputs"] if count == 1 else [f"output_{index}" for index in range(count)]


def _known_inputs(model: "keras.Model") -> Any:  # noqa: ANN401 - a tensor, list or dictionary of tensors
    """Return the inputs of a Functional or built Sequential model, or None if the model does not declare them."""
    import keras

    if isinstance(model, keras.Sequential):
        return model.inputs[0] if model.inputs else None
    return model.input if hasattr(model, "output_names") else None


def build_weights(model: "keras.Model", options: ModelOptions) -> None:
    """Build a model that does not declare its inputs by a call with zeros. This creates the weights to restore.

    Raises OptionConflict without --input.
    """
    import tensorflow as tf

    if _known_inputs(model) is not None:
        return
    structure, specs = _option_specs(options)
    zeros = {
        name: tf.zeros([1 if dim is None else dim for dim in spec.shape], spec.dtype) for name, spec in specs.items()
    }
    model(zeros if isinstance(structure, dict) else next(iter(zeros.values())), training=False)


def _option_specs(options: ModelOptions) -> "tuple[Any, dict[str, tf.TensorSpec]]":
    if not options.inputs or any(namings.dtype is None for namings in options.inputs):
        raise OptionConflict("the model's inputs are unknown. Describe each with --input 'name:dtype[batch,...]'")
    check_names([naming.name for naming in options.inputs])
    specs = {naming.name: option_spec(naming) for naming in options.inputs}
    return (next(iter(specs.values())) if len(specs) == 1 else dict(specs)), specs


def option_spec(naming: InputNaming) -> "tf.TensorSpec":
    """Return the spec of an --input with dtype and shape. Raises OptionConflict for an unknown dtype."""
    import tensorflow as tf

    try:
        return tf.TensorSpec(naming.shape, naming.dtype, name=naming.name)
    except TypeError as error:
        raise OptionConflict(f"--input {naming.name}: there is no dtype {naming.dtype!r}") from error


def _input_names(structure: object, leaves: "list[keras.KerasTensor]", options: ModelOptions) -> list[str]:
    if options.inputs:
        if len(options.inputs) != len(leaves):
            raise OptionConflict(
                f"there are {len(options.inputs)} --input options, but the model has {len(leaves)} input(s)"
            )
        return [naming.name for naming in options.inputs]
    if isinstance(structure, Mapping):
        return path_names(structure)
    named = [leaf.name for leaf in leaves]
    if not any(_AUTOMATIC_INPUT.fullmatch(name) for name in named):
        return named
    return ["inputs"] if len(leaves) == 1 else [f"input_{index}" for index in range(len(leaves))]


def path_names(structure: object) -> list[str]:
    """Return the names of leaves in the order of keras.tree. Underscores join the keys of nested leaves."""
    import keras

    return ["_".join(str(part) for part in path) for path, _ in keras.tree.flatten_with_path(structure)]
