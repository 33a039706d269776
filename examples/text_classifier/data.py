"""Synthetic sentences about three places, and their vocabulary. Needs no TensorFlow."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PLACES = tuple(Path(__file__).with_name("labels.txt").read_text().split())
_OF_PLACES = tuple(
    words.split()
    for words in (
        "anchor boat crane dock ferry gull mast pier quay rope sail tide",
        "beans bee compost fence hedge lawn mulch petal rake roots shed spade",
        "dough flour garlic kettle knife ladle oven pan pepper sieve soup spoon",
    )
)
_FILLERS = [
    *(
        "a",
        "above",
        "after",
        "all",
        "and",
        "at",
        "before",
        "behind",
        "big",
        "by",
        "for",
        "from",
        "in",
        "into",
        "it",
        "new",
    ),
    *("of", "off", "old", "on", "one", "our", "out", "over", "red", "she", "small", "some", "still", "that", "the"),
    *(
        "their",
        "then",
        "there",
        "they",
        "to",
        "two",
        "under",
        "warm",
        "was",
        "we",
        "went",
        "were",
        "when",
        "with",
        "you",
    ),
]
# Ids of padding and of words outside the vocabulary.
PADDING, UNKNOWN = 0, 1
VOCABULARY = (*_FILLERS, *(word for words in _OF_PLACES for word in words))
_FIRST_WORD = 2
LONGEST = 32


@dataclass(frozen=True, slots=True)
class Sentences:
    """Texts, and their places: int64 [rows] from 0 to 2."""

    texts: list[str]
    places: NDArray[np.int64]


def make(rows: int, seed: int) -> Sentences:
    """Return sentences of 3 to 24 words. Some words name the place, most are neutral, and some name another place."""
    random = np.random.default_rng(seed)
    places = random.integers(0, len(PLACES), rows)
    return Sentences([_make_sentence(random, int(place)) for place in places], places)


def _make_sentence(random: np.random.Generator, place: int) -> str:
    words = list(random.choice(_FILLERS, random.integers(1, 20)))
    words += list(random.choice(_OF_PLACES[place], random.integers(2, 5)))
    if random.random() < 0.5:
        words.append(str(random.choice(_OF_PLACES[(place + 1) % len(PLACES)])))
    random.shuffle(words)
    return " ".join(words)


def encode(texts: list[str]) -> NDArray[np.int32]:
    """Return each text's word numbers, padded to the longest text: int32 [rows, length]."""
    numbers = {word: number for number, word in enumerate(VOCABULARY, start=_FIRST_WORD)}
    rows = [[numbers.get(word, UNKNOWN) for word in text.lower().split()] for text in texts]
    ids = np.full((len(rows), max(map(len, rows))), PADDING, np.int32)
    for row, found in zip(ids, rows, strict=True):
        row[: len(found)] = found
    return ids
