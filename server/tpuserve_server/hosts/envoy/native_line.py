"""Log events from lines that Envoy and native libraries write to stderr."""

import logging
import re
from typing import Final

# spdlog's pattern: level, component, and the message with its line feeds escaped. The first field marks Envoy's lines.
ENVOY_LOG_FORMAT: Final = "envoy\t%l\t%n\t%_"

_ENVOY_LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
# The form of Abseil's log lines, of gRPC, TensorFlow and XLA: level, month and day, time.
_ABSEIL: Final = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d")
_ABSEIL_LEVELS: Final = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_NATIVE: Final = "stderr"


def log_line(line: str) -> None:
    """Log a line. A line of unknown origin is a warning, which no level suppresses: it may explain a crash.

    The line is the message itself, not its argument, so that only equal lines count as repeats.
    """
    if line.startswith("envoy\t") and line.count("\t") >= 3:
        _, level, component, message = line.split("\t", 3)
        logging.getLogger(f"envoy.{component}").log(_ENVOY_LEVELS.get(level, logging.WARNING), message)
    elif match := _ABSEIL.match(line):
        logging.getLogger(_NATIVE).log(_ABSEIL_LEVELS[match[1]], line)
    elif line.strip():
        native = logging.getLogger(_NATIVE)
        native.handle(native.makeRecord(_NATIVE, logging.WARNING, __file__, 0, line, (), None))
