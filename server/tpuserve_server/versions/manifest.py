"""The exporter's manifest as the server reads it (docs/reference/manifest.md).

Its parts are those of `tpuserve_formats`, except signatures. The server reads only some of their fields, and accepts
manifests without the others.
"""

import hashlib
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from tpuserve_formats.manifest import FORMAT_VERSION, MANIFEST_FILE
from tpuserve_formats.manifest.part import PadValue, Part
from tpuserve_formats.manifest.version import ManifestCpu, ManifestEvaluation, ManifestFile, ManifestParity
from tpuserve_server.core.terms.errors import DeadlineExceeded, FailedPrecondition, ServingError, file_error
from tpuserve_server.core.terms.storage import show_name
from tpuserve_server.core.terms.types import Precision

# Enough for any list of files.
MAX_MANIFEST_BYTES = 16 * 2**20


class InputEntry(Part):
    """Value that pads one input's sequences; None means zeros or empty strings.

    `tried_sizes`: the least and the greatest size that the exporter ran for each dimension, None for a fixed one. Empty
    if unknown.
    """

    pad_value: PadValue | None = None
    tried_sizes: tuple[tuple[int, int] | None, ...] = ()

    def describe_tried(self) -> str:
        """Return the tried sizes as `[1-4, 2-8, *]`, with a star for each fixed one."""
        return f"[{', '.join('*' if tried is None else f'{tried[0]}-{tried[1]}' for tried in self.tried_sizes)}]"

    def has_tried(self, shape: tuple[int, ...]) -> bool:
        """Return whether each size is in the range that the exporter ran, or the manifest has no ranges."""
        if len(shape) != len(self.tried_sizes):
            return True
        pairs = zip(shape, self.tried_sizes, strict=True)
        return all(tried is None or tried[0] <= size <= tried[1] for size, tried in pairs)


class SignatureEntry(Part):
    """Buckets of one signature, and whether its rows may share a batch with rows of other requests.

    `sequence_buckets` are ascending lengths. Padding inputs to them does not change the results of the real elements.
    Without `deterministic`, the same request gets a different result each time.
    """

    batch_sizes: tuple[int, ...] = ()
    rows_independent: bool = False
    deterministic: bool = True
    sequence_buckets: tuple[int, ...] = ()
    inputs: Mapping[str, InputEntry] = Field(default_factory=dict)

    @property
    def pad_values(self) -> dict[str, PadValue]:
        """Pad values by input, for inputs that have one."""
        return {name: entry.pad_value for name, entry in self.inputs.items() if entry.pad_value is not None}


class Manifest(Part):
    """Findings of the exporter about a version."""

    format_version: int
    signatures: Mapping[str, SignatureEntry] = Field(default_factory=dict)
    compute_dtype: str = ""
    parity: ManifestParity | None = None
    evaluation: ManifestEvaluation | None = None
    cpu: ManifestCpu = ManifestCpu()
    labels: str | None = None
    files: Mapping[str, ManifestFile] = Field(default_factory=dict)

    @classmethod
    def read(cls, version_path: Path) -> Self | None:
        """Read the manifest of a version, or return None if it has none.

        Raises:
            FailedPrecondition: the manifest cannot be read, or has the format of a later exporter.
        """
        content = read_content(version_path, MANIFEST_FILE, MAX_MANIFEST_BYTES)
        return None if content is None else cls.parse(content)

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse the content of a manifest's file.

        Raises:
            FailedPrecondition: the content is not a manifest, or has the format of a later exporter.
        """
        try:
            manifest = cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise FailedPrecondition(f"{MANIFEST_FILE} is not a valid manifest: {where}: {first['msg']}") from error
        if manifest.format_version > FORMAT_VERSION:
            raise FailedPrecondition(
                f"{MANIFEST_FILE} has format_version {manifest.format_version}; this server supports up to "
                f"{FORMAT_VERSION}. Upgrade tpuserve-server, or export with an older tpuserve-exporter"
            )
        return manifest

    @property
    def precision(self) -> Precision | None:
        """Compute dtype and tolerances; None if the manifest has no tolerance, or an infinite one."""
        if self.parity is None or math.isinf(self.parity.atol) or math.isinf(self.parity.rtol):
            return None
        return Precision(self.compute_dtype, self.parity.atol, self.parity.rtol)

    @property
    def metrics(self) -> dict[str, object] | None:
        """The exporter's metrics on labelled rows as JSON, for clients and the console, or None."""
        return None if self.evaluation is None else self.evaluation.model_dump(mode="json")

    def verify_files(self, version_path: Path, is_over: Callable[[], bool] = lambda: False) -> None:
        """Read every file once and compare it with its hash. Blocks while it reads the files, until `is_over`.

        Raises:
            FailedPrecondition: a file is missing, truncated or changed. The message names the first.
            DeadlineExceeded: `is_over` returned True.
        """
        for name, entry in sorted(self.files.items()):
            _verify_size(version_path, name, entry)
            try:
                digest = sha256_of(version_path / name, is_over)
            except OSError as error:
                raise file_error(f"{name} cannot be read", error) from error
            if digest != entry.sha256:
                raise FailedPrecondition(
                    f"{name} is corrupt: its sha256 is {digest}, the manifest has {entry.sha256}. "
                    "Copy or export the version again"
                )


def read_content(version_path: Path, name: Path, max_bytes: int) -> bytes | None:
    """Return the content of a small file of a version, or None if it does not exist.

    Raises:
        FailedPrecondition: the file cannot be read, or has more than `max_bytes`.
    """
    path = version_path / name
    try:
        info = path.stat()
        if stat.S_ISFIFO(info.st_mode):  # Opening a pipe blocks until another process writes to it.
            raise FailedPrecondition(f"{name} is a named pipe, not a file")
        if info.st_size > max_bytes:
            raise FailedPrecondition(f"{name} has more than {max_bytes >> 20} MiB")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(f"{name} cannot be read", error) from error


def missing_file(version_path: Path) -> str | None:
    """Describe a listed file that is missing or has another size: empty for none, None without a manifest.

    Cheap, because it compares only sizes. Loading reads the contents.
    """
    try:
        manifest = Manifest.read(version_path)
        if manifest is None:
            return None
        for name, entry in manifest.files.items():
            _verify_size(version_path, name, entry)
    except ServingError as error:
        return error.message
    return ""


def describe_size(name: str, entry: ManifestFile, size_bytes: int | None) -> str:
    """Describe a file of the wrong size; empty for the right size. `size_bytes` is None for a missing file."""
    if size_bytes is None:
        return f"{name} is missing; the manifest lists it"
    if size_bytes != entry.size_bytes:
        return f"{name} has {size_bytes} bytes; the manifest has {entry.size_bytes}"
    return ""


def _verify_size(version_path: Path, name: str, entry: ManifestFile) -> None:
    path = version_path / name
    try:
        # A manifest is untrusted: it must not make the server read files outside the directory.
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(version_path)):
            raise FailedPrecondition(f"{name} in the manifest is outside the version directory")
        size_bytes = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise file_error(f"{name!r} in the manifest cannot be checked", error) from error
    except ValueError as error:
        # pathlib raises ValueError for a name with a NUL.
        raise FailedPrecondition(f"{name!r} in the manifest cannot be checked: {type(error).__name__}") from error
    if wrong := describe_size(name, entry, size_bytes):
        raise FailedPrecondition(wrong)


# Large, because the thread, which may have a low priority, needs the interpreter's lock between two pieces.
_PIECE_BYTES = 8 * 2**20


def sha256_of(path: Path, is_over: Callable[[], bool] = lambda: False) -> str:
    """Return the sha256 of a file in hexadecimal. Blocks while it reads the whole file.

    Raises:
        OSError: the file cannot be read.
        DeadlineExceeded: `is_over` returned True between two pieces.
    """
    piece, digest = memoryview(bytearray(_PIECE_BYTES)), hashlib.sha256()
    with path.open("rb") as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
            if is_over():
                raise DeadlineExceeded(f"The hash of {show_name(path.name)} takes too long")
    return digest.hexdigest()
