"""Synthetic users and films: users have a taste and films a kind, which together decide the likes."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

USERS, ITEMS = 200, 80
# Padding id, for example for a history of three films in an array of eight.
PADDING = -1
LONGEST_HISTORY = 8


@dataclass(frozen=True, slots=True)
class Views:
    """`user` and `item` int32 [n], `history` int32 [n, LONGEST_HISTORY], `liked` float32 [n]."""

    user: Array
    history: Array
    item: Array
    liked: Array


def load(rows: int = 6000, seed: int = 1) -> Views:
    """Return users, films, the users' earlier films, and whether they liked the film."""
    generator = np.random.default_rng(seed)
    taste, kind = np.arange(USERS) % 4, np.arange(ITEMS) % 4
    user = generator.integers(0, USERS, rows, dtype=np.int32)
    item = generator.integers(0, ITEMS, rows, dtype=np.int32)
    seen = generator.integers(0, ITEMS // 4, (rows, LONGEST_HISTORY), dtype=np.int32) * 4 + taste[user][:, np.newaxis]
    lengths = generator.integers(0, LONGEST_HISTORY + 1, rows)
    history = np.where(np.arange(LONGEST_HISTORY) < lengths[:, np.newaxis], seen, PADDING).astype(np.int32)
    return Views(user, history, item, (taste[user] == kind[item]).astype(np.float32))
