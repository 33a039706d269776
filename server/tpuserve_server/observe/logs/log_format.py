"""LogFormat: the form of log lines, as the operator sets it, and the names of loggers with special rules.

Imports no heavy modules, because settings import it.
"""

import os
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

LogFormat: TypeAlias = Literal["auto", "text", "console", "json"]


def choose_format(log_format: LogFormat, descriptor: int) -> LogFormat:
    """Return `log_format`, or for `auto`: `console` if `descriptor` is a terminal, `text` otherwise."""
    if log_format != "auto":
        return log_format
    return "console" if os.isatty(descriptor) else "text"


def has_colors(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Return whether to color lines: only on a terminal, and not if NO_COLOR is set (https://no-color.org)."""
    return os.isatty(descriptor) and not environment.get("NO_COLOR")


# The server's answers to its command line. Lines of text and of the console have no time and no level, only this name.
COMMAND: Final = "tpuserve"
# Lines of requests. The access log limits them by itself.
ACCESS: Final = "tpuserve.access"
