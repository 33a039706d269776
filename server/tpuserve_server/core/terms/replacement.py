"""Replacement: why another process should take the place of this one. The supervisor needs it: light imports only."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Damage: TypeAlias = Literal["hung run", "lost device"]
HUNG: Final = "hung run"
LOST: Final = "lost device"


@dataclass(frozen=True, slots=True)
class Replacement:
    """Why another process should take the place of this one: a sentence for the operator."""

    damage: Damage
    why: str
