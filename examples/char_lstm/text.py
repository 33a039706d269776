"""The text that the model learns, and characters as numbers. No framework here, so that a client can do without."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DOCS = Path(__file__).resolve().parents[2] / "docs"
# A line's end, and what an English keyboard has; anything else becomes the last of them.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"
_NUMBERS = {character: number for number, character in enumerate(CHARACTERS)}


def load() -> NDArray[np.int32]:
    """The prose of the repository's own documentation: tables would teach mostly dashes."""
    lines = [line for path in sorted(DOCS.glob("*.md")) for line in path.read_text().splitlines()]
    return encode("\n".join(line for line in lines if not line.startswith("|")))


def encode(text: str) -> NDArray[np.int32]:
    """A number for each character."""
    return np.array([_NUMBERS.get(character, len(CHARACTERS) - 1) for character in text], np.int32)


def decode(numbers: NDArray[np.int32]) -> str:
    return "".join(CHARACTERS[number] for number in numbers)
