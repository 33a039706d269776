"""One --example: an input as users have it, and the answer that is expected of it."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tpuserve_exporter.errors import OptionConflict

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
ContentKind: TypeAlias = Literal["image", "text", "json", "npy", "npz"]

_TEXT, _JSON = "text:", "json:"
_NUMPY, _ZIP = b"\x93NUMPY", b"PK"
# JPEG, PNG, GIF, BMP, TIFF in both byte orders; WebP has its name eight bytes in.
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
_FORM = (
    "give INPUT=EXPECTED, such as photo.jpg=tabby, photo.jpg=281, 'text:a good film=positive' or row.json=scores.npy"
)


@dataclass(frozen=True, slots=True)
class Example:
    """`content` is a file's or the text's own bytes. `expected` is a label or a class's number, or arrays by output.

    An array without a name has the empty one: it is for the only output.
    """

    name: str
    kind: ContentKind
    content: bytes
    expected: str | Mapping[str, Array]

    @classmethod
    def parse(cls, text: str) -> "Example":
        """Read `photo.jpg=tabby` and the files that it names. Raises OptionConflict."""
        given, expected = _split(text)
        if not expected:
            raise OptionConflict(f"--example {text!r} expects nothing: {_FORM}")
        for prefix, kind in ((_TEXT, "text"), (_JSON, "json")):
            if given.startswith(prefix):
                literal = given.removeprefix(prefix)
                return cls(literal, "text" if kind == "text" else "json", literal.encode(), _read_expected(expected))
        path = Path(given)
        content = _read(path)
        return cls(path.name, _kind_of(path, content), content, _read_expected(expected))

    def __str__(self) -> str:
        return f"--example {self.name}"


def _split(text: str) -> tuple[str, str]:
    """At the `=` behind a file's name, which may have others; a literal text at its last."""
    if text.startswith((_TEXT, _JSON)):
        given, equals, expected = text.rpartition("=")
        if not equals:
            raise OptionConflict(f"--example {text!r} expects nothing: {_FORM}")
        return given, expected
    parts = text.split("=")
    for count in range(1, len(parts)):
        if Path("=".join(parts[:count])).is_file():
            return "=".join(parts[:count]), "=".join(parts[count:])
    if len(parts) == 1:
        raise OptionConflict(f"--example {text!r} expects nothing: {_FORM}")
    raise OptionConflict(f"--example {text!r}: there is no file {parts[0]!r}; {_FORM}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionConflict(f"--example: cannot read {path.name}: {error.strerror}") from error


def _kind_of(path: Path, content: bytes) -> ContentKind:
    """By content, except JSON, which is text."""
    if content.startswith(_NUMPY):
        return "npy"
    if content.startswith(_ZIP):
        return "npz"
    if content.startswith(_IMAGES) or content[8:12] == b"WEBP":
        return "image"
    if path.suffix.lower() == ".json":
        return "json"
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise OptionConflict(
            f"--example: {path.name} is no image, text, JSON, .npy or .npz that can be read"
        ) from error
    if not content.strip():
        raise OptionConflict(f"--example: {path.name} is empty")
    return "text"


def _read_expected(text: str) -> str | Mapping[str, Array]:
    path = Path(text)
    if path.suffix not in (".npy", ".npz"):
        return text
    return read_arrays(path.name, _read(path))


def read_arrays(name: str, content: bytes) -> dict[str, Array]:
    """Arrays of an .npz file by name, or the one of an .npy file by the empty name. Raises OptionConflict."""
    try:
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        return {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise OptionConflict(f"--example: cannot read {name} as a numpy file: {error}") from error
