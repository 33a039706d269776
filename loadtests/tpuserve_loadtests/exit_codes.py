"""What the commands' exit codes mean: the same in all of them, and public."""

from typing import Final

# Requests failed, answers were wrong, or there was no end: it was interrupted, or nothing was answered.
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
# Nobody can tell: the load generator was the limit, or a comparison too short for what it was to see.
EXIT_GENERATOR: Final = 98
# Something that was asked of the server does not hold: a gate, an objective, the comparison, a trend.
EXIT_GATE: Final = 99
