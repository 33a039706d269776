"""Text protos on disk: read and parsed, with one line for an operator when one is wrong."""

import re
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

_Message = TypeVar("_Message", bound=Message)

# protobuf's Python parser quotes the whole line before it says what is wrong with it.
_QUOTED_VALUE = re.compile(r"(Expected .* found:|ending quote:|invalid \w+ .*:) .*(\. Invalid protobuf file: )")
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?(.*)$", re.DOTALL)


class ConfigError(Exception):
    """A configuration file cannot be used. The message is one line for an operator and names the file."""


def read(path: Path, into: _Message, *, secret: bool = False) -> _Message:
    """`into` with the fields that the file at `path` sets. Blocking. An error never shows values of a `secret` file.

    Raises:
        ConfigError: It cannot be read, or is no text proto of this type: then with TensorFlow Serving's words
            (protobuf's own on stderr, and util/proto_util.h's), line and column.
    """
    try:
        return parse(read_text(path), into, path)
    except ConfigError as error:
        raise ConfigError(_QUOTED_VALUE.sub(r"\1 (not shown)\2", str(error)) if secret else str(error)) from None


def read_text(path: Path) -> str:
    """The file's text. Raises ConfigError when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read '{path}': {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"Cannot read '{path}': not UTF-8 text (byte {error.start})") from None


def parse(text: str, into: _Message, path: Path) -> _Message:
    """As `read`, of `text` that was read from `path`."""
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
