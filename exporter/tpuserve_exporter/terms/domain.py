"""Values that an input of a model can have, as far as its graph shows them, and reproducible draws from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors

_WORDS = 5
_UNKNOWN = b"tpuserve"


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of one input.

    `limits` are numbers of rows that an integer indexes, each with its columns of the last dimension or None for all.
    `keys` are the keys of the vocabularies that look it up. With `splits`, the model splits a text into keys. Floats
    range from 0 to `top`.
    """

    limits: tuple[tuple[tuple[int, ...] | None, int], ...] = ()
    keys: tuple[Any, ...] = ()
    splits: bool = False
    top: float = 1.0

    @property
    def knows_integers(self) -> bool:
        return bool(self.limits) or (bool(self.keys) and not isinstance(self.keys[0], bytes))

    def draw_integers(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw indices or keys. Each group of columns has its lowest and highest index, or a key and an unknown one.

        The first column is not 0, because 0 may mark padding, and a row of padding hides the input.
        """
        if self.keys and not isinstance(self.keys[0], bytes):
            return self._draw_keys(random, shape, max(self.keys) + 1, np.int64)
        limits = self._limits(shape)
        drawn = np.asarray(np.floor(random.random(shape) * limits), np.int64)
        if len(shape) > 1:
            drawn[:, 0] = np.maximum(drawn[:, 0], np.minimum(1, np.broadcast_to(limits, shape)[:, 0] - 1))
        columns = range(shape[-1]) if np.ndim(limits) else [slice(None)] if shape else []
        for one in columns:
            self._set_ends(drawn, one, np.broadcast_to(limits, shape)[..., one].flat[0] - 1 if drawn.size else 0)
        return drawn

    def _limits(self, shape: tuple[int, ...]) -> Array:
        """Return the limit, or an array of limits for the columns if they differ. Columns without a table have 2."""
        everywhere = [rows for columns, rows in self.limits if columns is None]
        narrow = [(columns, rows) for columns, rows in self.limits if columns is not None]
        if not narrow or len(shape) < 2:
            return np.asarray(min([rows for _, rows in self.limits], default=2))
        limits = np.full(shape[-1], min(everywhere, default=0))
        for columns, rows in narrow:
            for one in columns:
                if one < len(limits):
                    limits[one] = min(limits[one] or rows, rows)
        return np.where(limits == 0, 2, limits)

    @staticmethod
    def _set_ends(drawn: Array, columns: "int | slice", highest: int) -> None:
        """Set the first element to the highest index and the last one to the lowest, like a padded row."""
        part = drawn[..., columns]
        if part.size > 1:
            part[(-1,) * part.ndim] = 0
        if part.size:
            part[(0,) * part.ndim] = highest

    def draw_strings(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw keys, or texts of keys. One row has an unknown word."""
        if not self.splits:
            return self._draw_keys(random, shape, _UNKNOWN, object)
        words = self._draw_keys(random, (*shape, _WORDS), _UNKNOWN, object)
        texts = np.empty(shape, object)
        for place in np.ndindex(shape):
            texts[place] = b" ".join(words[place])
        return texts

    def _draw_keys(self, random: np.random.Generator, shape: tuple[int, ...], unknown: Any, dtype: Any) -> Array:  # noqa: ANN401
        drawn = np.empty(shape, dtype)
        order = np.resize(random.permutation(len(self.keys)), drawn.size)
        flat = [self.keys[index] for index in order]
        for index, key in zip((0, 1), (self.keys[-1], self.keys[0]), strict=True):
            flat[index : index + 1] = [key] if index < len(flat) else []
        if len(flat) > 2:
            flat[-1] = unknown
        drawn[...] = _as_objects(flat).reshape(shape)
        return drawn


def _as_objects(values: Sequence[Any]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found


class KnownInputs(Protocol):
    """The facts that a model shows about its inputs."""

    def domains(self, signature: Signature) -> Mapping[str, Domain]:
        """Return the domains of the inputs whose values are known, by name."""

    def make_examples(self, signature: Signature, count: int, longest: int) -> list[bytes]:
        """Return different tf.Examples that the model's parsers accept, with sequences of at most `longest` values."""

    def recorded(self, signature: Signature) -> list[Tensors]:
        """Return the inputs of the model's own warm-up requests."""


class Sampled(Runnable, Protocol):
    """A model that the exporter can make inputs for. It refuses bad inputs."""

    @property
    def inputs(self) -> KnownInputs: ...
