"""The commands' exit codes, which are public and common to all commands.

If several apply, the order is: generator, gate, failed, interrupted, evidence.
"""

from collections.abc import Iterable
from typing import Final

# Requests failed, answers were wrong, or the server answered no request.
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
# No verdict: too few requests, rounds or segments for a gate, a comparison or a soak.
EXIT_EVIDENCE: Final = 97
# No verdict: the load generator was the limit.
EXIT_GENERATOR: Final = 98
# The server missed a requirement: a gate, an objective, a comparison or a trend.
EXIT_GATE: Final = 99
# Ctrl-C or SIGTERM ended the load. An interrupted load has not passed.
EXIT_INTERRUPTED: Final = 130
_ORDER: Final = (EXIT_GENERATOR, EXIT_GATE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_EVIDENCE)


def exit_code(
    *,
    generator: bool = False,
    gate: bool = False,
    failed: bool = False,
    interrupted: bool = False,
    evidence: bool = False,
) -> int:
    """Return the exit code of a load to which some of the codes apply, or 0 if none does."""
    applying = zip(_ORDER, (generator, gate, failed, interrupted, evidence), strict=True)
    return next((code for code, applies in applying if applies), 0)


def first_of(codes: Iterable[int]) -> int:
    """Return the exit code that counts if several of these codes apply, or 0 if none does."""
    found = set(codes)
    return next((code for code in _ORDER if code in found), 0)
