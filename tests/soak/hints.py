"""Hints: how a request is sent, apart from what it asks."""

import random
from dataclasses import dataclass
from typing import Final, Self

# Deadline of all other requests. One without an answer by then is late.
PATIENCE_S: Final = 60.0
# Deadlines that the server can keep only sometimes.
_SHORT_S: Final = (0.001, 0.02)


@dataclass(frozen=True, slots=True)
class Hints:
    """Deadline, priority and compression. `is_short` marks a deadline that may pass on purpose."""

    timeout_s: float = PATIENCE_S
    is_low: bool = False
    is_compressed: bool = False
    is_short: bool = False

    @classmethod
    def choose(cls, chance: random.Random) -> Self:
        """Return random hints: 3 % of the deadlines are short, 20 % of the priorities low."""
        is_short = chance.random() < 0.03
        timeout_s = chance.uniform(*_SHORT_S) if is_short else PATIENCE_S
        return cls(timeout_s, chance.random() < 0.2, chance.random() < 0.3, is_short)
