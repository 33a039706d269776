"""Configuration of a process's logging, once in each process of the server."""

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tpuserve_server.observe.logs.background import BackgroundHandler
from tpuserve_server.observe.logs.log_format import COMMAND, LogFormat, choose_format, has_colors

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger


# Turns log records into lines of text, of a colored console, or of JSON. structlog renders them.
#
# A record may have an attribute `fields`: values by name, or a function that returns them.

# Control characters of ASCII and Latin-1, the separators of lines and paragraphs, the marks that reorder text, and
# surrogates, which have no UTF-8.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Begins every line of an event but the first. No event begins with a space.
CONTINUATION: Final = "    "


def escape(text: str) -> str:
    """Return `text` on one line, with `\\n`, `\\x1b` or `\\u2028` in place of unsafe characters."""
    return _UNSAFE.sub(_escaped, text)


def escape_json(text: str) -> str:
    """Return a JSON document on one line. Its unsafe characters are in strings, so their escapes are valid there."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def indent(text: str) -> str:
    """Return lines of text, such as a traceback, as the further lines of an event. Empty text has none."""
    if not text:
        return ""
    return "".join(f"\n{CONTINUATION}{escape(line)}" for line in text.rstrip("\n").split("\n"))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    """Hide rich during the import of structlog, which uses it for tracebacks if it is installed.

    The supervisor would start 60 ms later, and these tracebacks show the values of variables.
    """
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # Python's own sign for "cannot be imported"
    try:
        yield
    finally:
        del sys.modules["rich"]


with _without_rich():
    from structlog.dev import ConsoleRenderer, plain_traceback
    from structlog.processors import JSONRenderer
    from structlog.stdlib import ProcessorFormatter


_JSON: Final = json.JSONEncoder(ensure_ascii=False, default=str)
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/")


def line_formatter(log_format: LogFormat, *, colors: bool = False) -> logging.Formatter:
    """Return a formatter of records. A traceback is in the record's `traceback`. `colors` are only for `console`."""
    if log_format == "json":
        return ProcessorFormatter(processors=(_for_json, JSONRenderer(_to_json)))
    return ProcessorFormatter(processors=(_console_line(colors=colors) if log_format == "console" else _text_line,))


def _for_json(_logger: "WrappedLogger", _name: str, event: "EventDict") -> "EventDict":
    record = event["_record"]
    made: EventDict = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname,
        "logger": record.name,
        "thread": record.threadName,
        "message": _message(event),
    }
    made.update({name: value for name, value in _fields(record).items() if name not in made})
    if exception := _exception(event):
        made["exception"] = exception
    return made


def _to_json(event: object, **_options: object) -> str:
    return escape_json(_JSON.encode(event))


def _text_line(_logger: "WrappedLogger", _name: str, event: "EventDict") -> str:
    record = event["_record"]
    head = COMMAND
    if record.name != COMMAND:
        head = f"{_local_time(record.created)},{int(record.msecs):03d} {record.levelname} {record.name}"
    fields = "".join(f" {name}={_value(value)}" for name, value in _fields(record).items())
    return f"{head}: {escape(_message(event))}{fields}{indent(_exception(event))}"


def _console_line(*, colors: bool) -> "Processor":
    renderer = ConsoleRenderer(colors=colors, sort_keys=False, pad_event_to=0, exception_formatter=plain_traceback)

    def render(logger: "WrappedLogger", name: str, event: "EventDict") -> str:
        record = event["_record"]
        if record.name == COMMAND:
            return _text_line(logger, name, event)
        fields = {name: escape(value) if isinstance(value, str) else value for name, value in _fields(record).items()}
        head = {
            "timestamp": _local_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": escape(_message(event)),
        }
        return renderer(logger, name, {**fields, **head}) + indent(_exception(event))

    return render


def _message(event: "EventDict") -> str:
    message: str = event["event"]
    return message.rstrip("\n")  # warnings end with a line feed


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None) or {}
    found: Mapping[str, Any] = fields() if callable(fields) else fields
    return {name: value for name, value in found.items() if value is not None}


def _exception(event: "EventDict") -> str:
    return "\n".join(filter(None, (getattr(event["_record"], "traceback", ""), event.get("stack_info"))))


def _value(value: object) -> str:
    """Return the text of a field. Values with spaces, quotes or other marks are JSON, so that fields stay apart."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))
    if isinstance(value, str) and not (value and _PLAIN.issuperset(value)):
        text = json.dumps(value, ensure_ascii=False)
    return escape(text)


def _local_time(created: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(created))


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
