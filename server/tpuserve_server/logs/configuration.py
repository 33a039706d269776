"""Configuration of a process's logging, once in each process of the server."""

import logging
import os
import sys
import threading
from types import TracebackType
from typing import Final

from tpuserve_server.logs.background import BackgroundHandler
from tpuserve_server.logs.line_formatter import line_formatter
from tpuserve_server.logs.log_format import LogFormat, choose_format, has_colors

# Descriptor of stderr that a parent process passes, if descriptor 2 is a pipe to that parent.
DESCRIPTOR_VARIABLE: Final = "TPUSERVE_LOG_DESCRIPTOR"
LEVEL_VARIABLE: Final = "TPUSERVE_LOG_LEVEL"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_log = logging.getLogger(__name__)


def configure_logging(log_format: LogFormat = "auto") -> None:
    """Log to stderr at TPUSERVE_LOG_LEVEL (default INFO), with warnings and uncaught errors. Later calls do nothing.

    Raises:
        ValueError: the variable names no level.
    """
    level = _level(os.environ.get(LEVEL_VARIABLE, ""))
    root = logging.getLogger()
    if root.handlers:
        return
    descriptor = _stderr()
    formatter = line_formatter(choose_format(log_format, descriptor), colors=has_colors(descriptor, os.environ))
    root.addHandler(BackgroundHandler(descriptor, formatter))
    root.setLevel(level)
    logging.captureWarnings(True)
    sys.excepthook = _log_exception
    threading.excepthook = _log_thread_exception
    sys.unraisablehook = _log_unraisable


def dropped_events() -> int:
    """Return the number of log events that this process dropped, because the reader of stderr was too slow."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, BackgroundHandler))


def _level(name: str) -> str:
    level = name.upper() or "INFO"
    if level not in _LEVELS:
        raise ValueError(f"{LEVEL_VARIABLE} must be one of {', '.join(_LEVELS)}; was {name!r}")
    return level


def _stderr() -> int:
    """Return a copy of stderr: its own descriptor goes to a file while TensorFlow starts."""
    given = os.environ.pop(DESCRIPTOR_VARIABLE, None)
    if given is not None:
        os.set_inheritable(int(given), False)
        return int(given)
    try:
        return os.dup(2)
    except OSError:  # The process has none.
        return os.open(os.devnull, os.O_WRONLY)


def _log_exception(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        _log.critical("Uncaught exception", exc_info=(kind, error, traceback))


def _log_thread_exception(uncaught: threading.ExceptHookArgs) -> None:
    error = uncaught.exc_value or uncaught.exc_type()
    name = "unknown" if uncaught.thread is None else uncaught.thread.name
    _log.error("Uncaught exception in thread %s", name, exc_info=error)


def _log_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    error = unraisable.exc_value or unraisable.exc_type()
    _log.error("%s: %r", unraisable.err_msg or "Exception ignored in", unraisable.object, exc_info=error)
