"""Part of a version's manifest that running its device programs needs (docs/reference/manifest.md)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import ValidationError

from tpuserve_formats.dtypes import BY_DTYPE, STRING
from tpuserve_formats.manifest import FORMAT_VERSION, MANIFEST_FILE
from tpuserve_formats.manifest.device import DeviceHost, DevicePartEntry, DeviceSignature, ManifestDevice
from tpuserve_formats.manifest.part import Part
from tpuserve_formats.manifest.tensor import ManifestTensor
from tpuserve_formats.manifest.version import ManifestSignature
from tpuserve_server.core.terms.errors import FailedPrecondition, file_error
from tpuserve_server.core.terms.types import Signature, TensorSpec

# By the names that the exporter writes. numpy also takes programs of its own for a name, such as "2f4,(3,)i2".
_DTYPES = {"string" if dtype == STRING else dtype.name: dtype for dtype in BY_DTYPE}
_MOST_SHOWN = 64


class ProgramManifest(Part):
    """Manifest with device programs. Only the SavedModel runs signatures without a program."""

    signatures: Mapping[str, ManifestSignature]
    device: ManifestDevice

    @classmethod
    def read(cls, version_path: Path) -> Self | None:
        """Read the manifest of a version, or return None if it has no manifest or no device programs.

        Raises:
            FailedPrecondition: the programs cannot be used, because of their format, or of parts that do not match.
        """
        try:
            content = (version_path / MANIFEST_FILE).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise file_error(f"{MANIFEST_FILE} cannot be read", error) from error
        try:
            if _Outline.model_validate_json(content).device is None:
                return None
            manifest = cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise FailedPrecondition(
                f"{MANIFEST_FILE} has no usable device programs: {where}: {first['msg']}"
            ) from error
        manifest._check(version_path)
        return manifest

    @property
    def without_program(self) -> list[str]:
        """Signatures that only the SavedModel next to the programs can answer."""
        return sorted(self.signatures.keys() - self.device.signatures.keys())

    def has_independent_rows(self, signature: str) -> bool:
        """Return whether the rows of the signature's part are independent, whatever a host part does with them.

        The exporter found this for the signature itself, or for a signature that consists only of the part.
        """
        part = self.device.signatures[signature].part
        part_only = (name for name, entry in self.device.signatures.items() if self._is_part(entry, part))
        return any(self.signatures[name].rows_independent for name in (signature, *part_only))

    def _is_part(self, entry: DeviceSignature, part: str) -> bool:
        outputs = set(entry.outputs.values())
        return entry.part == part and entry.host is None and outputs == set(self.device.parts[part].outputs)

    def _check(self, version_path: Path) -> None:
        device = self.device
        if device.format_version > FORMAT_VERSION:
            raise FailedPrecondition(
                f"the device programs have format_version {device.format_version}; this server supports up to "
                f"{FORMAT_VERSION}. Upgrade tpuserve-server, or export with an older tpuserve-exporter"
            )
        for name, entry in device.signatures.items():
            if name not in self.signatures or entry.part not in device.parts:
                raise FailedPrecondition(
                    f"{MANIFEST_FILE} has no usable device programs: it does not describe '{name}'"
                )
            _check_ends(name, self.signatures[name], entry, device.parts[entry.part])
        programs = [program.file for part in device.parts.values() for program in part.programs]
        hosts = [entry.host.model for entry in device.signatures.values() if entry.host is not None]
        for file in (device.weights, *programs, *hosts):
            if not _is_within(version_path, file):
                raise FailedPrecondition(f"{file} in the manifest is outside the version directory")


def _is_within(version_path: Path, file: str) -> bool:
    try:
        # Path.resolve would raise RuntimeError for links in a circle.
        return Path(os.path.realpath(version_path / file)).is_relative_to(os.path.realpath(version_path))
    except ValueError as error:
        # A name with a NUL.
        raise FailedPrecondition(f"{file!r} in the manifest cannot be checked: {type(error).__name__}") from error


class _Outline(Part):
    device: Mapping[str, object] | None = None


def _check_ends(name: str, served: ManifestSignature, entry: DeviceSignature, part: DevicePartEntry) -> None:
    """Check that each input of the part is fed, and that each output of the signature is produced."""
    host = entry.host or DeviceHost(model="")
    ends = (
        ("input", host.before, entry.inputs, set(served.inputs), set(part.inputs)),
        ("output", host.after, entry.outputs, set(served.outputs), set(part.outputs)),
    )
    for kind, by_host, mapped, of_signature, of_part in ends:
        if by_host is not None:
            continue
        matches = set(mapped) == of_signature and set(mapped.values()) <= of_part
        if not matches or (kind == "input" and set(mapped.values()) != of_part):
            raise FailedPrecondition(
                f"{MANIFEST_FILE} has no usable device programs: {kind}s of '{name}' are {sorted(of_signature)}, "
                f"those of its part are {sorted(of_part)}, and the mapping is {dict(mapped)}"
            )


def served_signature(name: str, entry: ManifestSignature, method_name: str) -> Signature:
    """Return a signature as clients see it. A manifest has no graph names for its tensors."""
    return Signature(name, _specs(entry.inputs), _specs(entry.outputs), method_name)


def _specs(tensors: Mapping[str, ManifestTensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, _dtype(tensor.dtype), tensor.shape) for name, tensor in sorted(tensors.items())}


def _dtype(name: str) -> np.dtype[np.generic]:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise FailedPrecondition(f"{MANIFEST_FILE} has an unknown dtype: {name[:_MOST_SHOWN]}")
    return dtype
