"""What a version's manifest says of its device programs (docs/manifest.md), as far as running them needs it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from ml_dtypes import bfloat16
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.types import Signature, TensorSpec

MANIFEST_PATH = Path("assets.extra", "tpuserve", "manifest.json")
FORMAT_VERSION = 1

_STRING = "string"
_PREDICT = "tensorflow/serving/predict"


class _Entry(BaseModel):
    # Later exporters may say more.
    model_config = ConfigDict(extra="ignore", frozen=True)


class ServedTensor(_Entry):
    """One input or output of a signature. A None in `shape` is a free dimension, and None an unknown rank."""

    dtype: str
    shape: tuple[int | None, ...] | None
    pad_value: bool | int | float | str | None = None

    def spec(self, name: str) -> TensorSpec:
        """The same in the server's words."""
        return TensorSpec(name, _dtype(self.dtype), self.shape)


class TensorEntry(ServedTensor):
    """One input or output of a part, whose rank is known."""

    shape: tuple[int | None, ...]

    @property
    def has_rows(self) -> bool:
        """Whether the first dimension is that of the rows."""
        return bool(self.shape) and self.shape[0] is None


class ProgramEntry(_Entry):
    """One program: all free dimensions of its part have these sizes in it. None: the part has none of that kind."""

    batch_size: int | None = Field(default=None, ge=1)
    sequence_length: int | None = Field(default=None, ge=1)
    file: str

    def shape_of(self, tensor: TensorEntry) -> tuple[int, ...]:
        """The shape that an input of its part has in this program; 0 where the program has no size for it."""
        return tuple(
            size if size is not None else (self.sequence_length if axis else self.batch_size) or 0
            for axis, size in enumerate(tensor.shape)
        )


class PartEntry(_Entry):
    """What runs on a device. A program takes `inputs`, then `weights`, and gives `outputs`, in these orders."""

    inputs: Mapping[str, TensorEntry]
    weights: tuple[str, ...] = ()
    outputs: Mapping[str, TensorEntry]
    programs: tuple[ProgramEntry, ...] = Field(min_length=1)


class HostEntry(_Entry):
    """What the CPU does around a part: signatures of the small SavedModel `model`; None: nothing on that side."""

    model: str
    before: str | None = None
    after: str | None = None


class SignatureEntry(_Entry):
    """A signature's part, and which of the part's tensors are its own where no host part makes them."""

    part: str
    inputs: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None
    host: HostEntry | None = None
    method_name: str = _PREDICT


class ShardRule(_Entry):
    """Weights whose name `pattern` finds are split along the mesh's `axes`, one for each dimension; None: not split."""

    pattern: str
    axes: tuple[str | None, ...]


class DeviceEntry(_Entry):
    """The manifest's `device`."""

    format_version: int
    lowered_with: Mapping[str, str] = Field(default_factory=dict)
    calling_convention_version: int
    weights: str
    shard: tuple[ShardRule, ...] = ()
    parts: Mapping[str, PartEntry]
    signatures: Mapping[str, SignatureEntry]


class ServedEntry(_Entry):
    """A signature as clients see it."""

    inputs: Mapping[str, ServedTensor] = Field(default_factory=dict)
    outputs: Mapping[str, ServedTensor] = Field(default_factory=dict)
    rows_independent: bool = False

    def signature(self, name: str, method_name: str) -> Signature:
        """The same in the server's words; the graph's names of its tensors are in no manifest."""
        return Signature(
            name,
            {alias: entry.spec(alias) for alias, entry in sorted(self.inputs.items())},
            {alias: entry.spec(alias) for alias, entry in sorted(self.outputs.items())},
            method_name,
        )


class ProgramManifest(_Entry):
    """A manifest with device programs. Signatures that have none are the SavedModel's alone."""

    signatures: Mapping[str, ServedEntry]
    device: DeviceEntry

    @classmethod
    def read(cls, version_path: Path) -> Self | None:
        """The manifest of a version; None where it has none, or no device programs.

        Raises:
            FailedPrecondition: they cannot be used: another format, or parts that do not fit together.
        """
        try:
            content = (version_path / MANIFEST_PATH).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FailedPrecondition(f"{MANIFEST_PATH} cannot be read: {error.strerror}") from error
        try:
            if _Outline.model_validate_json(content).device is None:
                return None
            manifest = cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise FailedPrecondition(
                f"{MANIFEST_PATH} has no usable device programs: {where}: {first['msg']}"
            ) from error
        manifest._check(version_path)
        return manifest

    @property
    def without_program(self) -> list[str]:
        """Signatures that only the SavedModel beside the programs can answer."""
        return sorted(self.signatures.keys() - self.device.signatures.keys())

    def has_independent_rows(self, signature: str) -> bool:
        """Whether the rows of the signature's part do not depend on each other, whatever a host part makes of them.

        So it was found of the signature itself, or of one that is the part and nothing else.
        """
        part = self.device.signatures[signature].part
        alone = (name for name, entry in self.device.signatures.items() if self._is_part(entry, part))
        return any(self.signatures[name].rows_independent for name in (signature, *alone))

    def _is_part(self, entry: SignatureEntry, part: str) -> bool:
        outputs = set((entry.outputs or {}).values())
        return entry.part == part and entry.host is None and outputs == set(self.device.parts[part].outputs)

    def _check(self, version_path: Path) -> None:
        device = self.device
        if device.format_version > FORMAT_VERSION:
            raise FailedPrecondition(
                f"its device programs have format_version {device.format_version}; this server knows {FORMAT_VERSION}. "
                "Upgrade tpuserve-server, or export with an older tpuserve-exporter"
            )
        for name, entry in device.signatures.items():
            if name not in self.signatures or entry.part not in device.parts:
                raise FailedPrecondition(f"{MANIFEST_PATH} has no usable device programs: '{name}' is not described")
            _check_ends(name, self.signatures[name], entry, device.parts[entry.part])
        programs = [program.file for part in device.parts.values() for program in part.programs]
        hosts = [entry.host.model for entry in device.signatures.values() if entry.host is not None]
        for file in (device.weights, *programs, *hosts):
            # By realpath: Path.resolve raises RuntimeError for links in a circle.
            if not Path(os.path.realpath(version_path / file)).is_relative_to(os.path.realpath(version_path)):
                raise FailedPrecondition(f"{file} in the manifest leaves the version directory")


class _Outline(_Entry):
    device: Mapping[str, object] | None = None


def _check_ends(name: str, served: ServedEntry, entry: SignatureEntry, part: PartEntry) -> None:
    """Every input of the part is fed, and every output of the signature is made."""
    host = entry.host or HostEntry(model="")
    ends = (
        ("input", host.before, entry.inputs or {}, set(served.inputs), set(part.inputs)),
        ("output", host.after, entry.outputs or {}, set(served.outputs), set(part.outputs)),
    )
    for kind, by_host, mapped, of_signature, of_part in ends:
        if by_host is not None:
            continue
        fits = set(mapped) == of_signature and set(mapped.values()) <= of_part
        if not fits or (kind == "input" and set(mapped.values()) != of_part):
            raise FailedPrecondition(
                f"{MANIFEST_PATH} has no usable device programs: {kind}s of '{name}' are {sorted(of_signature)}, "
                f"of its part {sorted(of_part)}, and it maps {dict(mapped)}"
            )


def _dtype(name: str) -> np.dtype[np.generic]:
    if name == _STRING:
        return np.dtype(object)
    try:
        # ml_dtypes has told numpy the names of its types.
        return np.dtype(bfloat16) if name == "bfloat16" else np.dtype(name)
    except TypeError as error:
        raise FailedPrecondition(f"{MANIFEST_PATH} has a dtype that this server does not know: {name}") from error
