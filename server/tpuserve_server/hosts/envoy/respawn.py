"""Pauses before the supervisor starts Envoy again after Envoy has ended by itself."""

# The first new start follows at once. Each quick end after it doubles the pause.
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
# A process that lived this long was healthy: its end is no continuation of earlier ends.
HEALTHY_S = 60.0


class Respawns:
    """Counts the ends of processes. It never gives up: other models may still serve, and versions may change."""

    def __init__(self) -> None:
        self._quick_ends = 0

    def pause_s(self, lived_s: float) -> float:
        """Return the pause after a process that lived for `lived_s` seconds."""
        self._quick_ends = 1 if lived_s >= HEALTHY_S else self._quick_ends + 1
        if self._quick_ends == 1:
            return 0.0
        return min(FIRST_PAUSE_S * 2.0 ** min(self._quick_ends - 2, 10), MAX_PAUSE_S)
