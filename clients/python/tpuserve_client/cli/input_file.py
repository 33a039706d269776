"""Reader of input files: JSON, .npy, .npz, images and texts. Images and texts need the model's signature.

The reader recognises files by their content, and text by a name that ends in .txt.
"""

import base64
import binascii
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from tpuserve_client.client import Inputs
from tpuserve_client.errors import InvalidArgument

_NPY = b"\x93NUMPY"
_NPZ = b"PK\x03\x04"
# PNG, JPEG, GIF, TIFF (both byte orders), BMP. WebP has its magic at byte 8.
_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\x00", b"MM\x00*", b"BM")

_Json: TypeAlias = Any  # any result of json.loads


@dataclass(frozen=True, slots=True)
class FileInputs:
    """Inputs ready to send, and the signature that a JSON body may name."""

    inputs: Inputs
    signature_name: str | None = None


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An encoded image."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Text:
    """A text for the model's only input."""

    content: str


def read_input(file: BinaryIO) -> FileInputs | ImageFile | Text:
    """Read a whole file. Raises InvalidArgument for an unknown format or a broken file."""
    content = file.read()
    name = getattr(file, "name", "standard input")
    try:
        if content.startswith(_NPY):
            return FileInputs(np.load(io.BytesIO(content), allow_pickle=False))
        if content.startswith(_NPZ):
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return FileInputs(dict(arrays))
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidArgument(f"{name} is not a valid numpy file: {error}") from None
    if content.startswith(_IMAGES) or content[8:12] == b"WEBP":
        return ImageFile(content)
    if str(name).lower().endswith(".txt"):
        try:
            return Text(content.decode().rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{name} is not UTF-8 text: {error}") from None
    try:
        return json_inputs(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{name} is neither JSON nor .npy, .npz or an image: {error} (to send text, use --text or a .txt file)"
        ) from None


def json_inputs(document: _Json) -> FileInputs:
    """Return inputs from a TensorFlow Serving body, from {"name": array}, or from a bare array."""
    if not isinstance(document, dict) or document.keys() == {"b64"}:
        return FileInputs(_values(document))
    signature_name = document.get("signature_name")
    if isinstance(document.get("instances"), list):
        return FileInputs(_columns(document["instances"]), signature_name)
    if "inputs" in document and document.keys() <= {"inputs", "signature_name"}:
        return FileInputs(_named_or_bare(document["inputs"]), signature_name)
    return FileInputs(_named_or_bare(document))


def _named_or_bare(value: _Json) -> Inputs:
    if isinstance(value, dict) and value.keys() != {"b64"}:
        return {name: _values(item) for name, item in value.items()}
    return _bare(value)


def _bare(value: _Json) -> Inputs:
    converted: Inputs = _values(value)
    return converted


def _columns(rows: list[_Json]) -> Inputs:
    """Convert rows to columns: a list of values stays a list, a list of objects becomes a list for each name."""
    if not rows or not all(isinstance(row, dict) and row.keys() != {"b64"} for row in rows):
        return _bare(rows)
    if any(row.keys() != rows[0].keys() for row in rows):
        raise InvalidArgument("All instances must have the same inputs.")
    return {name: [_values(row[name]) for row in rows] for name in rows[0]}


def _values(value: _Json) -> _Json:
    """Return the value with {"b64": …} objects decoded to bytes."""
    if isinstance(value, list):
        return [_values(item) for item in value]
    if isinstance(value, Mapping):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (KeyError, TypeError, binascii.Error):
            raise InvalidArgument(f"Invalid value: {json.dumps(value):.80}") from None
    return value
