"""Reads the values to serve, and computes those of averages that optax does not store as it returns them."""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.nearness import Nearness, check_near, choose_compared, measure, too_far
from tpuserve_exporter.sources.part_roles import Role
from tpuserve_exporter.sources.trees.kept_weights import AverageState, ScheduleFreeState
from tpuserve_exporter.sources.trees.stored_tree import StoredTree
from tpuserve_exporter.sources.trees.tree_matching import TreeMatching
from tpuserve_exporter.sources.trees.weights_choice import Subtree
from tpuserve_exporter.terms.signature import Array

# The largest decay in use. After enough updates, not even this one leaves a bias that float32 shows.
_LARGEST_DECAY: Final = 0.99999
_NO_BIAS: Final = 2.0**-24
_UNKNOWN = "the checkpoint does not show whether it averages weights or gradients"


class ServedWeights:
    """The values of a matching. `detail` describes the computation of an average, and the evidence that it is one."""

    def __init__(self, tree: StoredTree, matching: TreeMatching, options: ModelOptions) -> None:
        """Check that a chosen average can be computed, and is near the trained weights. Reads some values.

        Raises OptionConflict, and CheckpointMismatch for an average that is not one of weights, or whose decay is
        unknown.
        """
        self._tree = tree
        self._matching = matching
        self._average = matching.average
        self._decay = options.weights_decay
        self._is_chosen = options.weights == "auto"
        self._scalar: float = 0
        self.detail = ""
        kept = None if self._average is None else self._average.kept
        if self._decay is not None and not isinstance(kept, AverageState):
            raise OptionConflict(
                "--weights-decay applies only to an average of optax.ema. Name its part with --weights"
            )
        if self._average is not None:
            if kept is not None:
                self._scalar = self._read_scalar(kept.count if isinstance(kept, AverageState) else kept.b1)
            self.detail = self._check(self._average)

    def read(self) -> dict[KeyPath, Array]:
        """Return the value for each of the model's paths, in the stored dtype. Raises SourceUnreadable."""
        paths = self._matching.pairs
        kept = None if self._average is None else self._average.kept
        if self._average is None or kept is None:
            values = self._tree.read(frozenset(paths.values()))
            return {path: values[stored] for path, stored in paths.items()}
        others = {path: stored for path, stored in paths.items() if path not in self._average.pairs}
        values = self._tree.read(frozenset(others.values()))
        return {path: values[stored] for path, stored in others.items()} | self._compute(self._average.pairs)

    def _compute(self, paths: Iterable[KeyPath]) -> dict[KeyPath, Array]:
        """Return values of the average as optax returns them."""
        average, trained = self._average, self._matching.trained
        assert average is not None
        kept, paths = average.kept, list(paths)
        values = self._read(average, paths)
        if isinstance(kept, AverageState) and self._decay is not None:
            # Each value leaves the dictionary, or memory would hold all values twice.
            return {path: kept.debias(values.pop(path), int(self._scalar), self._decay) for path in paths}
        if isinstance(kept, ScheduleFreeState) and trained is not None:
            parameters = self._read(trained, paths)
            return {path: kept.evaluate(values.pop(path), parameters.pop(path), self._scalar) for path in paths}
        return values

    def _read(self, subtree: Subtree, paths: Iterable[KeyPath]) -> dict[KeyPath, Array]:
        values = self._tree.read(frozenset(subtree.pairs[path] for path in paths))
        return {path: np.asarray(values[subtree.pairs[path]]) for path in paths}

    def _read_scalar(self, name: KeyPath) -> float:
        path = next(original for original, one in self._matching.names.items() if one == name)
        return float(self._tree.read({path})[path])

    def _check(self, average: Subtree) -> str:
        """Return the description."""
        kept, trained = average.kept, self._matching.trained
        if isinstance(kept, AverageState) and self._decay is None and not self._is_unbiased():
            raise self._ask_for_decay(average)
        if isinstance(kept, ScheduleFreeState) and (trained is None or not trained.is_whole):
            raise CheckpointMismatch(
                f"{average} becomes weights only with the parameters of training, which are missing"
            )
        nearness = self._measure(average, self._compute)
        compared = check_near(
            nearness, str(average), str(trained), strictly=average.role is Role.OPTIMIZER or self._is_chosen
        )
        return "; ".join([*self._describe(average), *filter(None, [compared])])

    def _measure(
        self, average: Subtree, read: Callable[[Collection[KeyPath]], Mapping[KeyPath, Array]]
    ) -> Nearness | None:
        """Compare values of the average, which `read` returns, with the trained weights. Return None without these."""
        trained = self._matching.trained
        if trained is None:
            return None
        shapes = {path: self._tree.arrays[stored].shape for path, stored in average.pairs.items()}
        sizes = {
            path: math.prod(shape)
            for path, shape in shapes.items()
            if path in trained.pairs and self._tree.arrays[trained.pairs[path]].shape == shape
        }
        compared = choose_compared(sizes)
        values, weights = read(compared), self._read(trained, compared)
        return measure((values[path], weights[path]) for path in compared)

    def _describe(self, average: Subtree) -> Iterator[str]:
        kept, trained = average.kept, self._matching.trained
        if isinstance(kept, ScheduleFreeState):
            yield f"computed from {trained} and {average} for evaluation, as schedule_free_eval_params does"
        elif isinstance(kept, AverageState):
            how = f"debiased with the decay {self._decay:g}" if self._decay else "as stored"
            yield f"{how} after {int(self._scalar)} updates"
        if average.role is Role.OPTIMIZER and not isinstance(kept, ScheduleFreeState):
            yield _UNKNOWN

    def _is_unbiased(self) -> bool:
        return self._scalar > math.log(_NO_BIAS, _LARGEST_DECAY)

    def _ask_for_decay(self, average: Subtree) -> CheckpointMismatch:
        """Return the error for an average that only the user can correct. It names the decay that would fit."""
        stored, trained, count = (
            self._measure(average, functools.partial(self._read, average)),
            self._matching.trained,
            int(self._scalar),
        )
        if stored is not None and not stored.is_aligned:
            return too_far(stored, str(average), str(trained))
        hint = ""
        if stored is not None and stored.is_biased and count:
            hint = f". If the weights changed little, the decay was near {(1 - stored.length) ** (1 / count):.5g}"
        return CheckpointMismatch(
            f"{average} is biased towards zero after {count} updates, and the checkpoint does not record the decay "
            "that corrects it. Add --weights-decay with the decay of optax.ema, or with 0 for an average that needs no "
            f"correction. --weights raw serves the weights as trained{hint}"
        )
