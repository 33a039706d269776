"""Histograms and counts by label values, created on first use, up to a limit for each metric apart.

The first 1000 models of a metric have complete series. Further ones count together, under the label value `other`.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.histogram import Histogram

_log = logging.getLogger(__name__)

# Maximum number of models of one metric.
MOST_MODELS: Final = 1000
# Maximum number of series of one model in one metric: a model may have thousands of signatures.
MOST_OF_A_MODEL: Final = 1000
# When a metric has so many series, a model with its equal share of them gets no more.
MOST_SERIES: Final = 20_000
_SHARE: Final = MOST_SERIES // MOST_MODELS
# Label value of all models, versions and signatures beyond the limits. No version has the number.
OTHER: Final = "other"
OTHER_VERSION: Final = -1
# Maximum number of names to remember of the models beyond the limits, for each metric.
_MOST_FOLDED: Final = 10_000


def version_label(version: int | None) -> str:
    """Return the label value of a version, which is None if the server found none."""
    if version is None:
        return ""
    return OTHER if version == OTHER_VERSION else str(version)


def servable_labels(servable: ServableId) -> tuple[str, str]:
    """Return the label values of a model and its version."""
    return servable.name, version_label(servable.version)


class ModelPlaces:
    """Models that have ended, so that others may take their places, and models that found no place. Thread-safe."""

    def __init__(self) -> None:
        """Start without models."""
        self._lock = threading.Lock()
        # In the order in which they ended.
        self._ended: dict[str, None] = {}
        self._folded: dict[str, set[str]] = {}
        # Grows when a model ends.
        self.changes = 0

    def model_changed(self, model: str, *, has_ended: bool) -> None:
        """Record that the last version of a model has ended, or that it has a version that has not."""
        with self._lock:
            self._ended.pop(model, None)
            if has_ended:
                self._ended[model] = None
                self.changes += 1

    def ended(self) -> Sequence[str]:
        """Return the models without a version, the one that ended first before the others."""
        with self._lock:
            return list(self._ended)

    def fold(self, metric: str, model: str) -> None:
        """Record that some series of a model count under `other`. The first such model is in the log."""
        with self._lock:
            is_first = not self._folded
            models = self._folded.setdefault(metric, set())
            if len(models) < _MOST_FOLDED:
                models.add(model)
        if is_first:
            _log.warning(
                "%s counts further series of model '%s' under 'other', because it has the most series that it may "
                "have. tpuserve_metrics_folded_models counts such models of each metric",
                metric,
                model,
            )

    def folded(self) -> dict[str, int]:
        """Return the number of models with series under `other`, by metric."""
        with self._lock:
            return {metric: len(models) for metric, models in self._folded.items()}


def fold_servable(model: str) -> ServableId:
    """Return the version that stands for several of a model, or for several models."""
    return ServableId(model, OTHER_VERSION)


Key = TypeVar("Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Places(Generic[Key]):
    """The limits of one metric. `model_of` returns the model of a key; "" has no limit.

    `fold` returns the key that a key shares with others under the given name of a model: its own or `other`.
    """

    metric: str
    model_of: Callable[[Key], str]
    fold: Callable[[Key, str], Key]
    models: ModelPlaces


class _Store(Generic[Key, _Value]):
    """A value for each key. `_lock` guards the keys. Reading one value needs no lock."""

    def __init__(self, places: Places[Key] | None) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[Key, _Value] = {}
        self._places = places
        self._of_model: Counter[str] = Counter()
        # ModelPlaces.changes at the last search for a model that has ended.
        self._searched = -1

    def _place(self, key: Key) -> Key:
        """Return the key of a new series, which the caller adds, or the one that it shares. Call it with the lock."""
        places = self._places
        if places is None or key in self._by_key:
            return key
        model = places.model_of(key)
        owner = self._owner(places, model)
        if owner != model or not self._has_room(model):
            places.models.fold(places.metric, model)
            key = places.fold(key, owner)
        if key not in self._by_key:
            self._of_model[owner] += 1
        return key

    def _owner(self, places: Places[Key], model: str) -> str:
        """Return the model, or `other` if the metric has no place for a further model."""
        if not model or model == OTHER or model in self._of_model:
            return model
        if len(self._of_model.keys() - {"", OTHER}) < MOST_MODELS:
            return model
        if self._searched != places.models.changes:
            self._searched = places.models.changes
            for ended in places.models.ended():
                if ended in self._of_model:
                    self._searched = -1
                    self._give_up(places, ended)
                    return model
        return OTHER

    def _has_room(self, model: str) -> bool:
        own = self._of_model[model]
        return own < (MOST_OF_A_MODEL if len(self._by_key) < MOST_SERIES else _SHARE)

    def _give_up(self, places: Places[Key], model: str) -> None:
        """Count the series of a model under `other`, so that sums over all models do not fall."""
        for key, value in self._pop(lambda key: places.model_of(key) == model):
            other = places.fold(key, OTHER)
            if other not in self._by_key:
                self._of_model[OTHER] += 1
            self._merge(other, value)

    def _pop(self, is_gone: Callable[[Key], bool]) -> list[tuple[Key, _Value]]:
        """Remove and return the series whose key `is_gone`, and free their places. Call it with the lock."""
        taken = [(key, self._by_key.pop(key)) for key in list(self._by_key) if is_gone(key)]
        if self._places is not None:
            for key, _ in taken:
                model = self._places.model_of(key)
                self._of_model[model] -= 1
                if not self._of_model[model]:
                    del self._of_model[model]
        return taken

    def _merge(self, key: Key, value: _Value) -> None:
        """Add a value to that of a key, which may be new."""
        raise NotImplementedError


class Series(_Store[Key, Histogram]):
    """One histogram for each key, up to a limit. Thread-safe."""

    def __init__(self, bounds: Sequence[float], places: Places[Key] | None = None) -> None:
        """Create an empty series. `bounds` are those of each histogram. `places` is None if the keys are few."""
        super().__init__(places)
        self.bounds = tuple(bounds)
        # Returns the histogram of a key that has one, else None. Faster than indexing, for every request.
        self.find = self._by_key.get

    def __getitem__(self, key: Key) -> Histogram:
        """Return the key's histogram. A new key gets an empty one, or shares one beyond the limit."""
        found = self._by_key.get(key)
        if found is not None:
            return found
        with self._lock:
            return self._by_key.setdefault(self._place(key), Histogram(self.bounds))

    def counted_as(self, key: Key) -> Key:
        """Return the key, or the one that it shares with others. Call it after the key's first value."""
        if self._places is None or key in self._by_key:
            return key
        own = self._places.fold(key, self._places.model_of(key))
        return own if own in self._by_key else self._places.fold(key, OTHER)

    def items(self) -> Sequence[tuple[Key, Histogram]]:
        """Return a snapshot of the keys and their histograms."""
        return list(self._by_key.items())

    def values(self) -> Sequence[Histogram]:
        """Return a snapshot of the histograms."""
        return list(self._by_key.values())

    def take(self, is_gone: Callable[[Key], bool]) -> list[tuple[Key, Histogram]]:
        """Remove and return the histograms whose key `is_gone`."""
        with self._lock:
            return self._pop(is_gone)

    def _merge(self, key: Key, value: Histogram) -> None:
        self._by_key.setdefault(key, Histogram(self.bounds)).absorb(value)


class Counts(_Store[Key, float]):
    """A count or a sum for each key, up to a limit. Thread-safe."""

    def __init__(self, places: Places[Key] | None = None) -> None:
        """Count nothing. `places` is None if the keys are few."""
        super().__init__(places)

    def add(self, key: Key, count: float = 1) -> None:
        """Add to the count of a key."""
        with self._lock:
            self._merge(self._place(key), count)

    def all(self) -> dict[Key, float]:
        """Return the count of each key."""
        with self._lock:
            return dict(self._by_key)

    def forget(self, is_gone: Callable[[Key], bool]) -> None:
        """Remove the keys that are gone."""
        with self._lock:
            self._pop(is_gone)

    def _merge(self, key: Key, value: float) -> None:
        self._by_key[key] = self._by_key.get(key, 0) + value
