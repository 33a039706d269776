"""The model's training text, and the encoding of characters as numbers. Clients can use it without a framework."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DOCS = Path(__file__).resolve().parents[2] / "docs"
# A newline and the printable ASCII characters. Any other character becomes the last of these.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"
_NUMBERS = {character: number for number, character in enumerate(CHARACTERS)}


def load() -> NDArray[np.int32]:
    """Return the prose of the repository's own documentation, without tables, which would teach mostly dashes."""
    lines = [line for path in sorted(DOCS.glob("*.md")) for line in path.read_text().splitlines()]
    return encode("\n".join(line for line in lines if not line.startswith("|")))


def encode(text: str) -> NDArray[np.int32]:
    """Return the number of each character."""
    return np.array([_NUMBERS.get(character, len(CHARACTERS) - 1) for character in text], np.int32)


def decode(numbers: NDArray[np.int32]) -> str:
    return "".join(CHARACTERS[number] for number in numbers)
