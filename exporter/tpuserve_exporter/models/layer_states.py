"""State of Keras layers that is not in variables: vocabularies, IDF weights, bin boundaries, constants, files.

It is part of what was trained as much as the weights are. Some formats store it, and others do not.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.models.builder import is_keras_2
from tpuserve_exporter.terms.provenance import OriginKind
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import keras

_VOCABULARY_FILE = "vocabulary.txt"
# Keras' key of a lookup's IDF weights among the layer's arrays.
IDF_WEIGHTS = "idf_weights"


class SavedLayers:
    """The layers of a saved model, by Keras' path of each, such as `layers/text_vectorization`.

    A format overrides what it holds in addition to variables. `of_keras_2`: Keras 2 wrote the model, with other
    settings of its layers than Keras 3.
    """

    of_keras_2 = False

    def files(self, path: str) -> Mapping[str, bytes]:
        """Return the layer's files by name."""
        return {}

    def config(self, path: str) -> Mapping[str, Any]:
        """Return the layer's configuration, empty if it is unknown."""
        return {}

    def arrays(self, path: str) -> Mapping[str, Array]:
        """Return the layer's own arrays."""
        return {}

    def name(self, path: str) -> str | None:
        """Return the layer's name, or None if it is unknown or if the format finds variables by it."""
        return None


@dataclass(frozen=True, slots=True)
class LayerState:
    """One value of one layer. `name` is unique in the model, and `path` is the layer's path in files."""

    kind: ClassVar[OriginKind] = OriginKind.STATISTICS
    unit: ClassVar[str] = "value"
    # The layer's own methods read its saved value, which replaces any other. They may need the layer's variables.
    reads_itself: ClassVar[bool] = False
    needs_variables: ClassVar[bool] = False
    # The code gives the value, and no training changes it: a format that does not hold it is no reason to refuse.
    is_setting: ClassVar[bool] = False

    name: str
    path: str
    layer: Any

    def read(self) -> Any | None:  # noqa: ANN401 - a comparable value of the kind
        """Return the layer's value, or None if the layer cannot compute without one and has none."""
        raise NotImplementedError

    def find(self, saved: SavedLayers) -> Any | None:  # noqa: ANN401 - as read
        """Return the saved value, or None if the format does not hold it."""
        raise NotImplementedError

    def assign(self, value: Any) -> None:  # noqa: ANN401 - as read
        """Set the layer's value."""
        raise NotImplementedError

    def load(self, saved: SavedLayers) -> None:
        """Set the layer's value to the saved one."""
        self.assign(self.find(saved))

    def keys(self, saved: SavedLayers) -> list[str]:
        """Return the keys of the state among the layer's saved arrays."""
        return []

    def describe(self, value: Any, place: object = None) -> str:  # noqa: ANN401 - as read
        """Describe a value in a message, with the element at `place`: `9 terms (number 2 is 'the')`."""
        what = f"{len(value)} {self.unit}{'' if len(value) == 1 else 's'}"
        if isinstance(place, int) and place < len(value):
            return f"{what} (number {place} is {value[place]!r})"
        return what


class Vocabulary(LayerState):
    """The terms of a StringLookup, IntegerLookup or TextVectorization, with the terms for padding and unknown ones."""

    kind = OriginKind.VOCABULARY
    unit = "term"

    def read(self) -> tuple[object, ...] | None:
        lookup: Any = lookup_of(self.layer)
        terms = tuple(one.item() if isinstance(one, np.generic) else one for one in lookup.get_vocabulary())
        return terms if len(terms) > _count_special(lookup) else None

    def find(self, saved: SavedLayers) -> tuple[object, ...] | None:
        lookup: Any = lookup_of(self.layer)
        listed = saved.config(self.path).get("vocabulary")
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            special = tuple(lookup.get_vocabulary()[: _count_special(lookup)])
            terms = tuple(listed)
            return terms if terms[: len(special)] == special else special + terms
        file = saved.files(self.path).get(_VOCABULARY_FILE)
        if file is None:
            return None
        found = _parse_terms(file, lookup.vocabulary_dtype == "string")
        size = saved.config(self.path).get("vocabulary_size")
        if size is not None and size != len(found):
            raise SourceUnreadable(
                f"the stored vocabulary of {self.name.rpartition('/')[0]} has {len(found)} terms, but the layer had "
                f"{size}: a term contains a line break, which Keras' file cannot hold. Give the layer its terms in "
                "the constructor (vocabulary=[...]) and save the model again"
            )
        return found

    def assign(self, value: tuple[object, ...]) -> None:
        lookup: Any = lookup_of(self.layer)
        # IdfWeights sets the real weights.
        weights = np.ones(len(value)) if lookup.output_mode == "tf_idf" else None
        lookup.set_vocabulary(list(value), idf_weights=weights)


class IdfWeights(LayerState):
    """The weights of a lookup's terms in tf_idf mode."""

    def read(self) -> tuple[float, ...] | None:
        weights = getattr(lookup_of(self.layer), IDF_WEIGHTS, None)
        return None if weights is None else tuple(weights.numpy().tolist())

    def find(self, saved: SavedLayers) -> tuple[float, ...] | None:
        stored = saved.arrays(self.path).get(IDF_WEIGHTS)
        return None if stored is None else tuple(stored.tolist())

    def assign(self, value: tuple[float, ...]) -> None:
        import tensorflow as tf

        lookup: Any = lookup_of(self.layer)
        lookup.idf_weights = tf.Variable(value, trainable=False)
        lookup.idf_weights_const = lookup.idf_weights.value()

    def keys(self, saved: SavedLayers) -> list[str]:
        return [IDF_WEIGHTS]


class BinBoundaries(LayerState):
    """The boundaries of a Discretization layer."""

    def read(self) -> tuple[float, ...] | None:
        boundaries = self.layer.bin_boundaries
        return None if boundaries is None else tuple(map(float, boundaries))

    def find(self, saved: SavedLayers) -> tuple[float, ...] | None:
        boundaries = saved.config(self.path).get("bin_boundaries")
        return None if boundaries is None else tuple(map(float, boundaries))

    def assign(self, value: tuple[float, ...]) -> None:
        self.layer.bin_boundaries = list(value)


class Constants(LayerState):
    """Mean and variance that were given to a Normalization layer. Adapted ones are variables."""

    is_setting = True

    def read(self) -> tuple[float, ...]:
        return _flatten(self.layer.input_mean, self.layer.input_variance)

    def find(self, saved: SavedLayers) -> tuple[float, ...] | None:
        config = saved.config(self.path)
        if config.get("mean") is None:
            return None
        return _flatten(config["mean"], config["variance"])


class Files(LayerState):
    """The files of a layer of the user or of another library, which its own methods write and read."""

    kind = OriginKind.VOCABULARY
    unit = "file"
    reads_itself = True

    def read(self) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                self.layer.save_assets(folder)
            except Exception:  # a layer that has no state yet may raise anything
                return {}
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}

    def find(self, saved: SavedLayers) -> dict[str, bytes] | None:
        return dict(saved.files(self.path)) or None

    def assign(self, value: dict[str, bytes]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in value.items():
                Path(folder, name).write_bytes(content)
            self.layer.load_assets(folder)


class OwnValues(LayerState):
    """Arrays of a user's layer, which its own methods save and load in addition to its variables."""

    reads_itself = True
    needs_variables = True

    def read(self) -> dict[str, Any]:
        """Return dtype, shape and bytes of each array, by its key in the file."""
        import keras
        import tensorflow as tf

        store = dict[str, Any]()
        self.layer.save_own_variables(store)
        values = {key: one for key, one in store.items() if not isinstance(one, keras.Variable | tf.Variable)}
        return {key: _freeze(np.asarray(one)) for key, one in values.items() if one is not None}

    def find(self, saved: SavedLayers) -> dict[str, Any] | None:
        arrays = saved.arrays(self.path)
        return {key: _freeze(arrays[key]) for key in self.read() if key in arrays} or None

    def load(self, saved: SavedLayers) -> None:
        """Let the layer read all its arrays."""
        self.layer.load_own_variables(dict(saved.arrays(self.path)))

    def keys(self, saved: SavedLayers) -> list[str]:
        return list(self.find(saved) or ())


def _freeze(value: Array) -> tuple[str, tuple[int, ...], bytes]:
    return value.dtype.name, value.shape, value.tobytes()


def _flatten(*values: object) -> tuple[float, ...]:
    return tuple(float(one) for value in values for one in np.ravel(np.asarray(value, np.float32)))


def _parse_terms(content: bytes, text: bool) -> tuple[object, ...]:
    """Return the terms of Keras' file. Keras ends a term at any character that ends a line in Unicode."""
    lines = content.decode().split("\n")
    if len(lines) > 1 and all(line.endswith("\r") for line in lines[:-1]):  # written on Windows
        lines = [line.removesuffix("\r") for line in lines]
    return tuple(lines) if text else tuple(int(line) for line in lines if line)


def list_states(model: Any) -> list[LayerState]:  # noqa: ANN401 - a Keras model or any tf.Module
    """Return the states of a model of Keras 3 or 2. Other modules have none."""
    import keras

    if isinstance(model, keras.Model):
        layers = list(walk_layers(model))
    elif is_keras_2(model):
        layers = [(one.name, one) for one in model._flatten_layers(include_self=True)]
    else:
        return []
    inner = {id(lookup_of(layer)) for _, layer in layers if lookup_of(layer) is not layer}
    return [state for path, layer in layers if id(layer) not in inner for state in _states_of(path, layer)]


def _states_of(path: str, layer: Any) -> Iterator[LayerState]:  # noqa: ANN401 - a layer of Keras 3 or 2
    name = str(getattr(layer, "path", None) or getattr(layer, "name", None) or path)
    lookup = lookup_of(layer)
    if lookup is not None:
        yield Vocabulary(f"{name}/vocabulary", path, layer)
        if lookup.output_mode == "tf_idf":
            yield IdfWeights(f"{name}/{IDF_WEIGHTS}", path, layer)
    elif _is_a(layer, "Discretization"):
        yield BinBoundaries(f"{name}/bin_boundaries", path, layer)
    elif _is_a(layer, "Normalization") and layer.input_mean is not None:
        yield Constants(f"{name}/mean_and_variance", path, layer)
    else:
        if hasattr(layer, "save_assets") and hasattr(layer, "load_assets"):
            yield Files(f"{name}/files", path, layer)
        if is_foreign(layer, "save_own_variables"):
            yield OwnValues(f"{name}/values", path, layer)


def is_foreign(layer: object, method: str) -> bool:
    """Return whether a method of the layer is not Keras' own."""
    module = getattr(getattr(type(layer), method, None), "__module__", "keras")
    return str(module).partition(".")[0] not in ("keras", "tf_keras")


def lookup_of(layer: Any) -> Any | None:  # noqa: ANN401 - a layer of Keras 3 or 2
    """Return the layer with the vocabulary: the layer itself, the part of a TextVectorization, or None."""
    if _is_a(layer, "TextVectorization"):
        return layer._lookup_layer
    return layer if is_lookup(layer) else None


def is_lookup(thing: object) -> bool:
    """Return whether the object is a lookup layer of Keras, which keeps its vocabulary in a table."""
    return _is_a(thing, "IndexLookup")


def _is_a(layer: object, name: str) -> bool:
    """Return whether the layer is of a class of Keras 3 or 2, without importing Keras 2."""
    return any(
        base.__name__ == name and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in type(layer).__mro__
    )


def _count_special(lookup: Any) -> int:  # noqa: ANN401 - a lookup of Keras 3 or 2
    """Return the number of terms that every vocabulary of the layer has: for padding, and for unknown terms."""
    return int(lookup._token_start_index())


def walk_layers(model: "keras.Model") -> "Iterator[tuple[str, Any]]":
    """Yield each saved part of a Keras 3 model once, with the path under which Keras saves it.

    This follows `_save_state` of keras.src.saving.saving_lib, which has the only definition of the paths.
    """
    yield from _walk(model, "", set())


def _walk(part: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a part of a Keras model
    from keras.src.saving import saving_lib

    if id(part) in seen:
        return
    seen.add(id(part))
    yield path, part
    for name, child in saving_lib._walk_saveable(part):
        yield from _walk_child(child, f"{path}/{name}".removeprefix("/"), seen, set())


def _walk_child(child: Any, path: str, seen: set[int], containers: set[int]) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.src.utils import naming

    if isinstance(child, KerasSaveable):
        yield from _walk(child, path, seen)
    elif isinstance(child, list | dict | tuple) and id(child) not in containers:
        containers.add(id(child))
        used = Counter[str]()
        for one in child.values() if isinstance(child, dict) else child:
            kind = naming.to_snake_case(type(one).__name__) if isinstance(one, KerasSaveable) else "container"
            if isinstance(one, KerasSaveable | list | dict | tuple):
                name = f"{kind}_{used[kind]}" if used[kind] else kind
                used[kind] += 1
                yield from _walk_child(one, f"{path}/{name}", seen, containers)
