"""Reads the directory of Keras' callback OrbaxCheckpoint: the architecture, its variables by path, and its files.

Keras' own load_model finds no values for layers of nested models, whose names it changes, and keeps random ones.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict, SourceUnreadable
from tpuserve_exporter.models.layer_states import SavedLayers
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.keras.archive import KerasArchive, describe_config
from tpuserve_exporter.sources.keras.saved_layers import list_configs
from tpuserve_exporter.sources.keras.whole_model import build_whole
from tpuserve_exporter.sources.trees.orbax import OrbaxTree
from tpuserve_exporter.sources.variables.matching import (
    Matching,
    ModelVariable,
    Way,
    pair_by_count,
    pair_by_name,
)
from tpuserve_exporter.sources.variables.object_graph import StoredVariable
from tpuserve_exporter.terms.signature import Array
from tpuserve_exporter.terms.texts import first

if TYPE_CHECKING:
    import keras

_CONFIG, _ASSETS = "model_config", "assets"
_STRINGS = "_strings.json"
_VARIABLES = frozenset({"trainable_variables", "non_trainable_variables"})
_OPTIMIZER = "optimizer_variables"
_MOST_NAMED = 5
_GENERATORS = "seed_generator_state"


class KerasOrbaxModel:
    """The model in one step of the callback's directory."""

    def __init__(self, source: Path) -> None:
        """Read the architecture and the list of arrays, without values. Raises SourceUnreadable."""
        self._tree = OrbaxTree(source)
        self.name = self._tree.layout.name
        self.step = self._tree.layout.step
        self.archive = self._read_archive()
        # The item's own name is first in a path, unless it is the only one.
        self._paths = {_strip(path): path for path in self._tree.arrays if _ASSETS not in path[:1]}
        self.layers: SavedLayers = _SavedLayers(self._tree, self.archive)
        self.optimizer_state = tuple("/".join(path[1:]) for path in self._paths if path[0] == _OPTIMIZER)
        taken = {*_VARIABLES, _OPTIMIZER}
        self.bookkeeping = tuple(
            "/".join(path[1:]) for path in self._paths if path[0] not in taken or path[-1] == _GENERATORS
        )

    def _read_archive(self) -> KerasArchive:
        """Return the architecture, which is empty with save_weights_only."""
        item = self._tree.layout.items.get(_CONFIG)
        if item is None:
            return KerasArchive(Path(self.name), "3", {}, {})
        try:
            config = json.loads(json.loads((item / _STRINGS).read_text())["config"])
        except (OSError, ValueError, KeyError) as error:
            raise SourceUnreadable(
                f"cannot read {self.name}: {_CONFIG}/{_STRINGS} is missing or damaged. Copy the directory again, or "
                "export an earlier step"
            ) from error
        return describe_config(Path(self.name), config)

    def build(self, options: ModelOptions) -> "keras.Model":
        """Build the model that the directory describes. Raises OptionConflict, and errors of Keras."""
        if not self.archive.config:
            raise OptionConflict(
                f"{self.name} contains only weights (save_weights_only=True). Name the function that builds the model "
                "with --model"
            )
        return build_whole(self.archive.config, options)

    def variables(self, states: set[str]) -> list[StoredVariable]:
        found = [path for path in self._paths if path[0] in _VARIABLES and path[-1] != _GENERATORS]
        return [self._describe(number, path, "/".join(path[1:])) for number, path in enumerate(sorted(found))]

    def _describe(self, number: int, path: KeyPath, name: str) -> StoredVariable:
        spec = self._tree.arrays[self._paths[path]]
        return StoredVariable(number, name, "/".join(path), spec.dtype, spec.shape)

    def match(
        self, model: "keras.Model", weights: Sequence[ModelVariable], stored: Sequence[StoredVariable]
    ) -> Matching:
        candidates = [
            Matching.of(_pair_by_layers(model, weights, stored), stored, Way.NAME),
            Matching.of(pair_by_name(weights, stored), stored, Way.NAME),
            Matching.of(pair_by_count(weights, stored), stored, Way.COUNT),
        ]
        best = max(candidates, key=lambda one: one.fit(weights))
        # On TensorFlow, the callback saves scalars as Python numbers, which have no width.
        scalars = {
            index: StoredVariable(one.node, one.name, one.key, weights[index].dtype, ())
            for index, one in best.pairs.items()
            if not one.shape
        }
        return Matching.of({**best.pairs, **scalars}, stored, best.way)

    def choose_averages(
        self, model: "keras.Model", weights: Sequence[ModelVariable], matching: Matching, options: ModelOptions
    ) -> tuple[Mapping[int, StoredVariable], tuple[str, ...]]:
        if options.weights == "raw":
            return {}, ()
        averages = dict(self._find_averages(weights, matching)) if self.archive.optimizer.get("use_ema") else {}
        if options.weights == "ema" and not averages:
            raise CheckpointMismatch(
                f"--weights ema: {self.name} has no moving averages (of an optimizer with use_ema). Use --weights raw"
            )
        trained = {id(one) for one in model.trainable_variables}
        lacking = [one.name for index, one in enumerate(weights) if index not in averages and id(one.node) in trained]
        if averages and lacking:
            raise CheckpointMismatch(
                f"{self.name} has no moving averages of {first(lacking, _MOST_NAMED)}, but of other variables. Use "
                "--weights raw, or build the model as it was trained"
            )
        return averages, ()

    def _find_averages(
        self, weights: Sequence[ModelVariable], matching: Matching
    ) -> Iterator[tuple[int, StoredVariable]]:
        """Yield the average of `hidden/kernel`, which is `adam/hidden_kernel_average`, by the variable's index."""
        state = {path[-1]: path for path in self._paths if path[0] == _OPTIMIZER}
        if "iteration" in state and not self._read(state["iteration"]):  # averages are zero before the first step
            return
        for index, stored in matching.pairs.items():
            # The name in training, whatever --rename makes of it.
            path = state.get(f"{'_'.join(stored.key.split('/')[1:])}_average")
            if path is not None and self._tree.arrays[self._paths[path]].shape == weights[index].shape:
                yield index, self._describe(-1 - index, path, f"average of {weights[index].name}")

    def read(self, stored: StoredVariable) -> Array:
        return self._read(tuple(stored.key.split("/")))

    def _read(self, path: KeyPath) -> Array:
        own = self._paths[path]
        return np.asarray(self._tree.read({own})[own])


def _pair_by_layers(
    model: "keras.Model", weights: Sequence[ModelVariable], stored: Sequence[StoredVariable]
) -> dict[int, StoredVariable]:
    """Pair each variable with the stored one of the longest name that ends its path through nested models.

    `dense/kernel` in the model `head` is stored as `head/dense/kernel` or as `dense/kernel`, which depends on whether
    the training built `head` before it was a layer. Pair none of those that would take the same one.
    """
    by_name = {one.name: one for one in stored}
    paths = dict(_paths_through(model, ()))
    pairs = dict[int, StoredVariable]()
    for index, one in enumerate(weights):
        parts = paths.get(id(one.node), tuple(one.name.split("/")))
        tails = ["/".join(parts[first:]) for first in range(len(parts))]
        if (found := next((tail for tail in tails if tail in by_name), None)) is not None:
            pairs[index] = by_name[found]
    counts = Counter(one.node for one in pairs.values())
    return {index: one for index, one in pairs.items() if counts[one.node] == 1}


def _paths_through(layer: Any, prefix: KeyPath) -> Iterator[tuple[int, KeyPath]]:  # noqa: ANN401 - untyped Keras
    """Yield each variable's identity, and its path through the names of models and layers."""
    inner = getattr(layer, "layers", None)
    if isinstance(inner, list):
        for one in inner:
            yield from _paths_through(one, (*prefix, one.name))
        return
    for variable in layer.weights:
        parts = variable.path.split("/")
        own = len(parts) - parts[::-1].index(layer.name) if layer.name in parts else len(parts) - 1
        yield id(variable), (*prefix, *parts[own:])


class _SavedLayers(SavedLayers):
    """The layers of a step: their files and configurations. The callback saves no other arrays of layers."""

    def __init__(self, tree: OrbaxTree, archive: KerasArchive) -> None:
        self._tree = tree
        self._configs = dict(list_configs(archive.config))

    def files(self, path: str) -> Mapping[str, bytes]:
        folder = (_ASSETS, *path.split("/")) if path else (_ASSETS,)
        found = {one for one in self._tree.arrays if one[:-1] == folder}
        return {one[-1]: value.tobytes() for one, value in self._tree.read(found).items()} if found else {}

    def config(self, path: str) -> Mapping[str, Any]:
        return self._configs.get(path, {})


def _strip(path: KeyPath) -> KeyPath:
    return path[1:] if path[0] == "pytree" else path
