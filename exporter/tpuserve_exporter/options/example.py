"""One --example: an input in the user's own form, and its expected answer."""

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.array_files import Array, read_json, read_numpy

ContentKind: TypeAlias = Literal["image", "text", "json", "numpy"]

# Prefixes of an input that is given literally on the command line.
_LITERALS: Mapping[str, ContentKind] = {"text:": "text", "json:": "json"}
_NUMPY, _ZIP = b"\x93NUMPY", b"PK"
# JPEG, PNG, GIF, BMP, TIFF in both byte orders. WebP has its name at byte 8.
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
_FORM = "Use INPUT=EXPECTED, such as photo.jpg=tabby, photo.jpg=281, 'text:a good film=positive' or row.json=scores.npy"


@dataclass(frozen=True, slots=True)
class Example:
    """One input and its expected answer.

    `content` is the bytes of an image file or a text, or arrays by input. `expected` is a label, a class number, or
    arrays by output. The array for the only input or output may have the empty name.
    """

    name: str
    kind: ContentKind
    content: bytes | Mapping[str, Array]
    expected: str | Mapping[str, Array]

    @classmethod
    def parse(cls, text: str) -> "Example":
        """Read `photo.jpg=tabby` and the files that it names. Raises OptionConflict."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise OptionConflict(f"--example {text!r} is not valid UTF-8") from error
        text_input, expected = _split(text)
        if not expected:
            raise OptionConflict(f"--example {text!r} has no expected answer. {_FORM}")
        for prefix, kind in _LITERALS.items():
            if text_input.startswith(prefix):
                literal = text_input.removeprefix(prefix)
                return cls(literal, kind, _read_content(literal, kind, literal.encode()), _read_expected(expected))
        path = Path(text_input)
        content = _read(path)
        kind = _kind_of(path, content)
        return cls(path.name, kind, _read_content(path.name, kind, content), _read_expected(expected))

    def __str__(self) -> str:
        return f"--example {self.name}"


def _split(text: str) -> tuple[str, str]:
    """Split at the `=` after the name of a file, which may itself contain `=`, or at the last `=` of a literal."""
    if text.startswith(tuple(_LITERALS)):
        text_input, equals, expected = text.rpartition("=")
        if not equals:
            raise OptionConflict(f"--example {text!r} has no expected answer. {_FORM}")
        return text_input, expected
    parts = text.split("=")
    for count in range(1, len(parts)):
        # Unlike Path.is_file, os.path.isfile returns False for names that are too long and for unreadable directories.
        if os.path.isfile("=".join(parts[:count])):
            return "=".join(parts[:count]), "=".join(parts[count:])
    if len(parts) == 1:
        raise OptionConflict(f"--example {text!r} has no expected answer. {_FORM}")
    raise OptionConflict(f"--example {text!r}: there is no file {parts[0]!r}. {_FORM}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionConflict(f"--example: cannot read {path.name}: {error.strerror}") from error


def _kind_of(path: Path, content: bytes) -> ContentKind:
    """Detect the kind from the content, or JSON from the file's suffix. Raises OptionConflict."""
    if content.startswith((_NUMPY, _ZIP)):
        return "numpy"
    if content.startswith(_IMAGES) or content[8:12] == b"WEBP":
        return "image"
    if path.suffix.lower() == ".json":
        return "json"
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise OptionConflict(f"--example: cannot read {path.name} as an image, text, JSON, .npy or .npz") from error
    if not content.strip():
        raise OptionConflict(f"--example: {path.name} is empty")
    return "text"


def _read_content(name: str, kind: ContentKind, content: bytes) -> bytes | Mapping[str, Array]:
    if kind == "numpy":
        return _read_arrays(name, content)
    if kind == "text":
        return content.decode("utf-8-sig").rstrip("\r\n").encode()
    if kind == "image":
        return content
    try:
        return read_json(content)
    except ValueError as error:
        raise OptionConflict(f"--example: cannot read {name} as JSON: {error}") from error


def _read_expected(text: str) -> str | Mapping[str, Array]:
    path = Path(text)
    return _read_arrays(path.name, _read(path)) if path.suffix in (".npy", ".npz") else text


def _read_arrays(name: str, content: bytes) -> dict[str, Array]:
    try:
        return read_numpy(io.BytesIO(content))
    except (OSError, ValueError) as error:
        raise OptionConflict(f"--example: cannot read {name} as a numpy file: {error}") from error
