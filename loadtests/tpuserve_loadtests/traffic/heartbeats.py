"""Who is still there: coordinator and workers say every second that they are, and notice when the other does not.

A process that was killed, or a machine that is gone, says nothing of it, and a connection may not tell for hours.
"""

from collections.abc import Iterable
from typing import Final

# Of both sides: who is not heard of for so many beats is gone.
BEAT_S: Final = 1.0
PATIENCE_BEATS: Final = 10


class Heartbeats:
    """Counts how many of its own beats went by since each of the others was heard of.

    It counts beats, not time: who could not run for a while itself, as a machine that slept, has missed nobody.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._missed = dict.fromkeys(names, 0)

    def hear(self, name: str) -> None:
        """This one is there. From the first time on it is expected to say so again."""
        self._missed[name] = 0

    def forget(self, name: str) -> None:
        """Expect nothing more of this one."""
        self._missed.pop(name, None)

    def beat(self) -> None:
        """One's own beat."""
        for name in self._missed:
            self._missed[name] += 1

    def gone(self) -> list[str]:
        """Those who were not heard of for too long."""
        return [name for name, missed in self._missed.items() if missed > PATIENCE_BEATS]
