"""The device programs of a version, as its manifest lists them (docs/reference/manifest.md), and their sharding."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpuserve_exporter.errors import OptionConflict, SourceUnreadable
from tpuserve_exporter.options.tpu import DeviceMesh, ShardRule, find_axes
from tpuserve_exporter.terms.texts import first
from tpuserve_formats.manifest import FORMAT_VERSION, MANIFEST_FILE

_Read = TypeVar("_Read", bound="Entry")


class Entry(BaseModel):
    """A part of a document that another version of this exporter may have written. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Tensor(Entry):
    shape: tuple[int | None, ...]

    @property
    def has_rows(self) -> bool:
        return bool(self.shape) and self.shape[0] is None


class _Program(Entry):
    batch_size: int | None = None
    sequence_length: int | None = None
    file: str


class _PartEntry(Entry):
    inputs: Mapping[str, _Tensor]
    weights: tuple[str, ...]
    outputs: Mapping[str, _Tensor]
    programs: tuple[_Program, ...]


class _Rule(Entry):
    pattern: str
    axes: tuple[str | None, ...]


class _Device(Entry):
    format_version: int
    shard: tuple[_Rule, ...] = ()
    parts: Mapping[str, _PartEntry]


class _File(Entry):
    sha256: str


class _Manifest(Entry):
    fingerprint: str | None = None
    device: _Device | None = None
    files: Mapping[str, _File] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VersionProgram:
    """One program file and its arguments.

    `file` is relative to the version's directory. `row_inputs` and `row_outputs` state for each tensor whether its
    first dimension holds the rows.
    """

    part: str
    batch_size: int | None
    sequence_length: int | None
    version: Path
    file: str
    row_inputs: tuple[bool, ...]
    row_outputs: tuple[bool, ...]
    weights: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.version / self.file

    @property
    def bucket(self) -> str:
        """The program's sizes as text: `8`, `8 x 128`, or `as it is` for a program without rows and sequences."""
        sizes = [str(size) for size in (self.batch_size, self.sequence_length) if size is not None]
        return " x ".join(sizes) or "as it is"


@dataclass(frozen=True, slots=True)
class VersionPrograms:
    """All programs of a version, and the shard rules of its export. `fingerprint` is the manifest's, if it has one."""

    programs: tuple[VersionProgram, ...]
    rules: tuple[ShardRule, ...]
    fingerprint: str | None = None

    @classmethod
    def read(cls, version: Path) -> "VersionPrograms":
        """Read a version's manifest and check its program files.

        Raises SourceUnreadable if it is no version, has no device programs, or has a damaged file.
        """
        manifest = read_manifest(version, _Manifest)
        if manifest.device is None:
            raise no_programs(version)
        if manifest.device.format_version > FORMAT_VERSION:
            raise SourceUnreadable(
                f"its device programs have format_version {manifest.device.format_version}, but this exporter "
                f"supports {FORMAT_VERSION}. Upgrade tpuserve-exporter"
            )
        found = replace(cls._list(version, manifest.device), fingerprint=manifest.fingerprint)
        for program in found.programs:
            check_file(program, manifest.files)
        return found

    @classmethod
    def describe(cls, version: Path, device: Mapping[str, Any]) -> "VersionPrograms":
        """Return the programs of a version before its manifest is written. `device` is that entry of the manifest."""
        return cls._list(version, _Device.model_validate(device))

    @classmethod
    def _list(cls, version: Path, device: _Device) -> "VersionPrograms":
        programs = tuple(
            VersionProgram(
                part=name, batch_size=one.batch_size, sequence_length=one.sequence_length, version=version,
                file=one.file, weights=part.weights,
                row_inputs=tuple(one.has_rows for one in part.inputs.values()),
                row_outputs=tuple(one.has_rows for one in part.outputs.values()),
            )
            for name, part in device.parts.items()
            for one in part.programs
        )  # fmt: skip
        return cls(programs, tuple(ShardRule.read(rule.model_dump()) for rule in device.shard))


def check_file(program: VersionProgram, files: Mapping[str, _File]) -> None:
    """Raise SourceUnreadable if the file's SHA-256 differs from the manifest."""
    try:
        written = program.path.read_bytes()
    except OSError as error:
        raise SourceUnreadable(f"cannot read the program {program.file}: {error.strerror}") from error
    described = files.get(program.file)
    if described is not None and hashlib.sha256(written).hexdigest() != described.sha256:
        raise SourceUnreadable(
            f"the program {program.file} is damaged: its SHA-256 differs from the manifest's. Copy or export the "
            "version again"
        )


def no_programs(version: Path) -> SourceUnreadable:
    """Return the error for a version without device programs."""
    return SourceUnreadable(
        f"version {version.name} has no device programs. Export it again with --tpu or --device-programs"
    )


def read_manifest(version: Path, kind: type[_Read]) -> _Read:
    """Read the fields of a version's manifest that `kind` has. Raises SourceUnreadable if it is no version."""
    try:
        return kind.model_validate_json((version / MANIFEST_FILE).read_bytes())
    except FileNotFoundError as error:
        raise SourceUnreadable(_no_version(version)) from error
    except OSError as error:
        raise SourceUnreadable(f"cannot read the manifest: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SourceUnreadable(f"{MANIFEST_FILE} is damaged: {where}: {first['msg']}") from error


def _no_version(version: Path) -> str:
    numbers = sorted(
        int(one.name) for one in version.glob("*") if one.name.isdecimal() and (one / MANIFEST_FILE).exists()
    )
    if numbers:
        return f"{version} is a base path. Use one of its versions, such as {version / str(numbers[-1])}"
    if not version.is_dir():
        return f"{version} does not exist. Use the directory of a version, such as models/digits/3"
    return f"{version} is not a version directory of `tpuserve export`: it contains no {MANIFEST_FILE}"


# Smaller weights are replicated. Sharding would save little memory and add communication.
_CUT_FROM_BYTES = 2**20


def check_rules(rules: Sequence[ShardRule], shapes: Mapping[str, tuple[int, ...]], mesh: DeviceMesh) -> None:
    """Raise OptionConflict for a rule that matches no weight, or that does not divide a weight evenly."""
    for rule in rules:
        if not any(rule.pattern.search(name) for name in shapes):
            raise OptionConflict(f"--shard '{rule}' matches no weight. The weights are {first(shapes)}")
    for name, shape in shapes.items():
        _check_weight(name, shape, find_axes(name, rules), mesh)


def _check_weight(name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: DeviceMesh) -> None:
    if len(axes) > len(shape):
        raise OptionConflict(f"the --shard rule for {name} has {len(axes)} axes, but the shape is {list(shape)}")
    for size, axis in zip(shape, axes, strict=False):
        devices = 1 if axis is None else getattr(mesh, axis)
        if size % devices:
            raise OptionConflict(
                f"cannot split {name} of shape {list(shape)} along {axis}={devices}: {size} is not a multiple of "
                f"{devices}"
            )


def make_rules(weights: Mapping[str, tuple[tuple[int, ...], int]], model: int) -> tuple[ShardRule, ...]:
    """Make rules that shard every large weight along its longest dimension that `model` divides.

    `weights` has the shape and the bytes of each weight. Weights whose names differ only in numbers share a rule.
    """
    rules: dict[str, ShardRule] = {}
    for name, (shape, size_bytes) in weights.items():
        axis = _longest(shape, model)
        if size_bytes < _CUT_FROM_BYTES or axis is None:
            continue
        axes = tuple("model" if one == axis else None for one in range(len(shape)))
        pattern = f"^{_any_number(name)}$"
        kept = rules.setdefault(pattern, ShardRule(re.compile(pattern), axes))
        if kept.axes != axes:  # needs other axes than weights with a similar name
            exact = f"^{re.escape(name)}$"
            rules = {exact: ShardRule(re.compile(exact), axes), **rules}
    return tuple(rules.values())


def _longest(shape: tuple[int, ...], model: int) -> int | None:
    fitting = [(size, -axis) for axis, size in enumerate(shape) if size % model == 0]
    return -max(fitting)[1] if fitting else None


def _any_number(name: str) -> str:
    """Return a pattern that matches any numbers in the name: `block_12/kernel` becomes `block_\\d+/kernel`."""
    return re.sub(r"\d+", r"\\d+", re.sub(r"[.^$*+?{}\[\]\\|()]", lambda one: "\\" + one[0], name))
