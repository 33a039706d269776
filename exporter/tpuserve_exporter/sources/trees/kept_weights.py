"""Weights that an optimizer of optax keeps in its state, and the computation that makes them fit to serve.

The state of `optax.ema` looks the same for weights as for gradients. The state of `optax.contrib.schedule_free` has the
base iterates `z`, from which and from the parameters follow the weights for evaluation.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.sources.part_roles import Role, is_optimizer_key, role_of
from tpuserve_exporter.terms.signature import Array

# Keys under which optimizers keep the parameters themselves: flax.optim's Optimizer and nnx.Optimizer.
_PARAMETERS = ("target", "model")
# A part's keys are among the first of a path. A model's layers may have the same names.
_DEPTH = 3
_MODEL_KEYS = ("params", "model", "target")


@dataclass(frozen=True, slots=True)
class AverageState:
    """The state of optax.ema at `place`. It is biased towards zero: by 1 - decay**count, and has no decay."""

    place: KeyPath
    count: KeyPath

    @property
    def values(self) -> KeyPath:
        return (*self.place, "ema")

    def debias(self, value: Array, count: int, decay: float) -> Array:
        """Return the average as optax returns it, which computes the correction in float32."""
        correction = np.float32(1) - np.float32(decay) ** np.float32(count)
        return np.asarray(value / correction.astype(value.dtype))


@dataclass(frozen=True, slots=True)
class ScheduleFreeState:
    """The state of optax.contrib.schedule_free at `place`. The optimizer changes weights that are only for training."""

    place: KeyPath
    b1: KeyPath

    @property
    def values(self) -> KeyPath:
        return (*self.place, "z")

    def evaluate(self, value: Array, parameter: Array, b1: float) -> Array:
        """Return the weights for evaluation, as optax.contrib.schedule_free_eval_params does."""
        return np.asarray((parameter - (1.0 - b1) * value) / b1).astype(parameter.dtype)


KeptState = AverageState | ScheduleFreeState


class KeptStates:
    """The states in a tree with these paths."""

    def __init__(self, paths: Collection[KeyPath]) -> None:
        children = defaultdict[KeyPath, set[str]](set)
        for path in paths:
            for depth, key in enumerate(path):
                children[path[:depth]].add(key)
        self._found: dict[KeyPath, KeptState] = {}
        self._moments = set[KeyPath]()
        for place, keys in children.items():
            # A training state may have `ema` and `count` among others. The state of optax has only these.
            if keys == {"count", "ema"}:
                self._found[place] = AverageState(place, (*place, "count"))
            elif keys >= {"b1", "weight_sum", "z"}:
                self._found[place] = ScheduleFreeState(place, (*place, "b1"))
            elif keys >= {"mu", "nu"}:
                # Optimizers keep both moments of gradients at one place.
                self._moments |= {(*place, "mu"), (*place, "nu")}

    def of(self, path: KeyPath) -> KeptState | None:
        """Return the innermost state around a path, or None."""
        return next((self._found[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self._found), None)

    def holding(self, root: KeyPath) -> KeptState | None:
        """Return the state that keeps weights at `root`, or None."""
        state = self.of(root)
        return state if state is not None and root[: len(state.values)] == state.values else None

    def role(self, root: KeyPath) -> Role:
        """Return the role of a part. All of a state is the optimizer's, wherever the tree has it."""
        return Role.OPTIMIZER if self._is_in_state(root) else role_of(root)

    def role_of_array(self, path: KeyPath) -> Role:
        """Return the role of an array by the part that it is probably in."""
        outside = tuple(itertools.takewhile(lambda key: key not in _MODEL_KEYS, path[:-1][:_DEPTH]))
        return Role.OPTIMIZER if self._is_in_state(path) else role_of(outside)

    def _is_in_state(self, path: KeyPath) -> bool:
        return self.of(path) is not None or any(path[:end] in self._moments for end in range(1, len(path) + 1))


def keeps_parameters(root: KeyPath) -> bool:
    """Return whether an optimizer keeps the parameters themselves at `root`."""
    return len(root) > 1 and root[-1] in _PARAMETERS and is_optimizer_key(root[-2])
