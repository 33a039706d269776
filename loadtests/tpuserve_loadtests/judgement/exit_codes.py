"""The commands' exit codes, which are public and common to all commands."""

from typing import Final

# Requests failed, responses were wrong, the run was interrupted, or the server answered no request.
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
# No verdict: the load generator was the limit, or a comparison or soak was too short.
EXIT_GENERATOR: Final = 98
# The server missed a requirement: a gate, an objective, a comparison or a trend.
EXIT_GATE: Final = 99
