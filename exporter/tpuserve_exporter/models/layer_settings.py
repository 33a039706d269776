"""Settings of Keras layers, which are arguments of their constructors, compared with those of a saved model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.models.layer_states import SavedLayers, walk_layers

if TYPE_CHECKING:
    import keras

# Layers that prepare inputs: each of their settings belongs to what the weights were trained on.
_PREPARING = frozenset({
    "CategoryEncoding", "CenterCrop", "Discretization", "HashedCrossing", "Hashing", "IntegerLookup", "MelSpectrogram",
    "Normalization", "Rescaling", "Resizing", "STFTSpectrogram", "StringLookup", "TextVectorization",
})  # fmt: skip
# Settings that do not change the outputs of a restored model, or that layer_states compares.
_OTHERS = frozenset({
    "activity_regularizer", "autocast", "batch_input_shape", "batch_shape", "bin_boundaries", "build_config", "dropout",
    "dtype", "function", "idf_weights", "input_layers", "input_length", "input_shape", "layers", "max_tokens", "mean",
    "momentum", "name", "output_layers", "quantization_config", "rate", "recurrent_dropout", "seed", "synchronized",
    "trainable", "unroll", "variance", "vocabulary", "vocabulary_size",
})  # fmt: skip
_TRAINING_ONLY = ("_initializer", "_regularizer", "_constraint")
# The settings that `adapt` would compute with.
_FOR_ADAPT = {"Discretization": frozenset({"num_bins", "epsilon"})}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of one layer that differs. `prepares`: the layer prepares inputs."""

    name: str
    own: str
    stored: str
    prepares: bool


def find_other_settings(model: "keras.Model", saved: SavedLayers) -> Iterator[Setting]:
    """Yield the settings in which layers of a Keras 3 model differ from those of the same path in a saved model."""
    yield from _find_moved(model, saved)
    for path, layer in walk_layers(model):
        stored = saved.config(path)
        if stored:
            yield from (one for one in _compare(layer, stored) if one.prepares or not saved.of_keras_2)


def _find_moved(model: "keras.Model", saved: SavedLayers) -> Iterator[Setting]:
    """Yield the layers with weights whose own name the saved model has at the path of another layer.

    Paths count layers of a class, so that two heads of one shape in another order would exchange their weights. Names
    that Keras gives depend on what the process built before.
    """
    from keras.src.utils.naming import to_snake_case

    names = {path: saved.name(path) for path, _ in walk_layers(model)}
    stored = {(path.rpartition("/")[0], name) for path, name in names.items()}
    for path, layer in walk_layers(model):
        own, there = getattr(layer, "name", None), names[path]
        if there in (None, own) or (path.rpartition("/")[0], own) not in stored or not getattr(layer, "weights", ()):
            continue
        if not re.fullmatch(rf"{to_snake_case(type(layer).__name__)}(_\d+)?", str(own)):
            yield Setting(f"{own}/name", repr(own), repr(there), prepares=True)


def _compare(layer: Any, stored: Mapping[str, Any]) -> Iterator[Setting]:  # noqa: ANN401 - a part of a Keras model
    kind = type(layer).__name__
    try:
        own = layer.get_config()
    except Exception:  # the user's code, or Keras for a layer that it cannot describe
        return
    prepares = kind in _PREPARING and type(layer).__module__.startswith("keras.")
    for key in own.keys() & stored.keys() - _OTHERS - _FOR_ADAPT.get(kind, frozenset()):
        here, there = _plain(own[key]), _plain(stored[key])
        if here != there and not key.endswith(_TRAINING_ONLY):
            name = getattr(layer, "path", None) or layer.name
            yield Setting(f"{name}/{key}", _show(here), _show(there), prepares)


def _plain(value: Any) -> Any:  # noqa: ANN401 - as in JSON
    """Return a value as JSON has it, and an object by its class and settings, wherever its module is."""
    if isinstance(value, Mapping):
        if "class_name" in value:
            return [value["class_name"], _plain(value.get("config"))]
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | None) else str(value)


_MOST_SHOWN = 60


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
