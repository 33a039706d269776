"""Reader and parser of text protos on disk, with one-line errors for an operator."""

import re
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

# A configuration of thousands of models has about one MiB. The limit keeps a wrong path from filling the memory.
_MAX_BYTES = 64 << 20

_Message = TypeVar("_Message", bound=Message)

# protobuf's Python parser quotes the whole line before it describes the error.
_QUOTED_VALUE = re.compile(r"(Expected .* found:|ending quote:|invalid \w+ .*:) .*(\. Invalid protobuf file: )")
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?(.*)$", re.DOTALL)


class ConfigError(Exception):
    """Error of an unusable configuration file. The message is one line for an operator and names the file."""


def read(path: Path, into: _Message, *, secret: bool = False) -> _Message:
    """Set the fields of the file at `path` in `into`, and return `into`. Blocks.

    An error never shows values of a `secret` file.

    Raises:
        ConfigError: the file cannot be read, or is not a text proto of this type. In the second case the message has
            TensorFlow Serving's wording (protobuf's on stderr, and that of util/proto_util.h), line and column.
    """
    try:
        return parse(read_text(path), into, path)
    except ConfigError as error:
        raise ConfigError(_QUOTED_VALUE.sub(r"\1 (not shown)\2", str(error)) if secret else str(error)) from None


def read_text(path: Path, shown: Path | None = None) -> str:
    """Return the file's text. Raises ConfigError if the file cannot be read; the message names it as `shown`."""
    try:
        return _read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text (byte {error.start})"
    raise ConfigError(f"Cannot read '{shown or path}': {reason}")


def _read_bytes(path: Path) -> bytes:
    # Opening a named pipe blocks until another process writes to it.
    if path.is_fifo():
        raise OSError("it is a named pipe. Use a regular file")
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise OSError(f"it has more than {_MAX_BYTES >> 20} MiB")
    return content


def parse(text: str, into: _Message, path: Path) -> _Message:
    """Parse `text` from the file at `path` into `into`. Raises ConfigError as `read` does."""
    try:
        return text_format.Parse(text, into)
    except text_format.ParseError as error:
        raise ConfigError(_explain(str(error), into, path)) from None
    except RecursionError:
        raise ConfigError(_explain("nested too deeply", into, path)) from None


def _explain(reason: str, message: Message, path: Path) -> str:
    found = _POSITION.match(reason)
    where = f"{found[1]}:{found[2]}: {found[3]}" if found else reason
    what = " ".join(where.split()).rstrip(".")
    return f"Error parsing text-format {message.DESCRIPTOR.full_name}: {what}. Invalid protobuf file: '{path}'"
