"""Arrival traces: text files with one arrival time per line, in seconds. The first time is the start."""

from pathlib import Path

import numpy as np


class BadTrace(ValueError):
    """Error for a file that is not a valid arrival trace."""


def read_trace(path: Path, speed: float = 1.0) -> tuple[float, ...]:
    """Read arrival times in seconds after the first arrival, ascending and `speed` times as fast as recorded.

    `#` starts a comment. Raises BadTrace.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
        instants = np.array([float(line) for line in lines if line])
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    except ValueError as error:
        raise BadTrace(f"{path}: expected one arrival time in seconds per line; {error}") from None
    if len(instants) < 2 or not np.isfinite(instants).all():
        raise BadTrace(f"{path}: expected at least two arrival times in seconds")
    instants.sort()
    relative: list[float] = ((instants - instants[0]) / speed).tolist()
    if relative[-1] <= 0:
        raise BadTrace(f"{path}: all arrival times are equal")
    return tuple(relative)
