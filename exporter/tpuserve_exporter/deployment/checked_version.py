"""A version that was checked for the TPU of a deployment, and that fits on it.

The rows of its preflight are in the manifest, and in a report of `tpuserve check --tpu --json`.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self, TypeVar

from pydantic import Field, ValidationError

from tpuserve_exporter.errors import DoesNotFit, NotChecked, OptionConflict, SourceUnreadable
from tpuserve_exporter.options.tpu import DeviceMesh, TpuTopology
from tpuserve_exporter.programs.verdict import gibibytes, in_gib
from tpuserve_exporter.programs.version_programs import Entry, no_programs, read_manifest

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MeshRow(Entry):
    """Axes of the mesh that programs were compiled for."""

    data: int = Field(ge=1)
    model: int = Field(ge=1)


class ProgramSize(Entry):
    """Batch size and sequence length of a program, or None for a dimension that it does not have."""

    batch_size: int | None = None
    sequence_length: int | None = None


class ProgramRow(ProgramSize):
    """The verdict on one program for one topology."""

    part: str
    topology: str
    mesh: MeshRow
    verdict: str
    reason: str
    compile_s: _Seconds

    @property
    def bucket(self) -> str:
        """The program as text: `batch 8`, `batch 8, length 128`, or its part without rows and sequences."""
        sizes = (("batch", self.batch_size), ("length", self.sequence_length))
        return ", ".join(f"{kind} {size}" for kind, size in sizes if size is not None) or self.part


class HbmRow(Entry):
    """Bytes of one device's memory. None: unknown, because a program did not compile."""

    needed: int | None
    available: int


class TogetherRow(Entry):
    """The verdict on all programs together for one topology."""

    topology: str
    mesh: MeshRow
    verdict: str
    hbm_bytes: HbmRow
    side_by_side: int | None = None


class PreflightRows(Entry):
    """All results of one preflight."""

    preflight: tuple[ProgramRow, ...] = ()
    preflight_together: tuple[TogetherRow, ...] = ()

    @property
    def topologies(self) -> list[str]:
        """Names of the topologies, without duplicates, in order."""
        return list(dict.fromkeys(row.topology for row in self.preflight))


class _Part(Entry):
    programs: tuple[ProgramSize, ...]


class DeviceRows(PreflightRows):
    """The manifest's `device`. `weights` is the file of the weights. With `shard`, they can be split."""

    weights: str = ""
    parts: Mapping[str, _Part]
    signatures: Mapping[str, Any] = Field(default_factory=dict)
    shard: tuple[Any, ...] = ()


class _File(Entry):
    size_bytes: int = Field(ge=0)


class ManifestRows(Entry):
    """The fields of a manifest that a deployment depends on."""

    fingerprint: str | None = None
    signatures: Mapping[str, Any] = Field(default_factory=dict)
    device: DeviceRows | None = None
    files: Mapping[str, _File] = Field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The size of all files of the version."""
        return sum(one.size_bytes for one in self.files.values())

    def host_bytes(self, device: DeviceRows) -> int:
        """Return the bytes that a server reads into host memory to load the version.

        These are the weights, on their way to the device. If a signature has no program, the server also loads the
        whole SavedModel.
        """
        if self.signatures.keys() - device.signatures.keys():
            return self.size_bytes
        weights = self.files.get(device.weights)
        return 0 if weights is None else weights.size_bytes


class CheckReport(PreflightRows):
    """A report of `tpuserve check --tpu --json`. `fingerprint` is that of the checked version."""

    preflight: tuple[ProgramRow, ...]
    fingerprint: str | None = None

    @classmethod
    def read(cls, path: Path) -> "CheckReport":
        """Read the file. Raises SourceUnreadable if it is no such report."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise SourceUnreadable(f"cannot read {path}: {error.strerror}") from error
        except ValidationError as error:
            raise SourceUnreadable(f"{path} is not a document of `tpuserve check VERSION --tpu TPU --json`") from error


_Read = TypeVar("_Read", bound=Entry)

_FITS = "compiles and fits"


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """A version on one topology. Memory is for one device.

    `compile_s` is the sum over all programs, as measured by the preflight. `side_by_side` is the number of such
    versions that fit on the device. `size_bytes` is the size of all files of the version. `host_bytes` is the part of
    them that a server reads into host memory.
    """

    path: Path
    topology: TpuTopology
    mesh: DeviceMesh
    batch_sizes: tuple[int, ...]
    compile_s: float
    needed_bytes: int
    available_bytes: int
    side_by_side: int
    size_bytes: int
    host_bytes: int
    fingerprint: str | None

    @classmethod
    def read(cls, path: Path, topology: TpuTopology, check: Path | None = None) -> Self:
        """Read the version's preflight for `topology`, from its manifest or from the report `check`.

        Raises:
            SourceUnreadable: `path` is no version with device programs, or `check` is no report.
            OptionConflict: `check` is the report of another version.
            NotChecked: the preflight does not include the topology. The message has the command that checks it.
            DoesNotFit: a program does not fit or compile, or all programs together do not fit.
        """
        manifest = read_numbered(path, ManifestRows)
        device = manifest.device
        if device is None:
            raise no_programs(path)
        rows: PreflightRows = device
        if check is not None:
            rows = report = CheckReport.read(check)
            _check_same_version(path, check, report, manifest, device)
        programs = [row for row in rows.preflight if row.topology == topology.name]
        together = next((row for row in rows.preflight_together if row.topology == topology.name), None)
        if not programs or together is None:
            _refuse_unchecked(path, topology, rows, check, has_rules=bool(device.shard))
        needed_bytes = _check_fits(path, topology, programs, together)
        hbm = together.hbm_bytes
        return cls(
            path=path,
            topology=topology,
            mesh=DeviceMesh(together.mesh.data, together.mesh.model),
            batch_sizes=tuple(sorted({row.batch_size for row in programs if row.batch_size is not None})),
            compile_s=sum(row.compile_s for row in programs),
            needed_bytes=needed_bytes,
            available_bytes=hbm.available,
            side_by_side=together.side_by_side or hbm.available // max(needed_bytes, 1),
            size_bytes=manifest.size_bytes,
            host_bytes=manifest.host_bytes(device),
            fingerprint=manifest.fingerprint,
        )

    @property
    def model(self) -> str:
        """The name of the base path, which is usually the model's name."""
        return self.path.absolute().parent.name

    @property
    def number(self) -> str:
        return self.path.absolute().name

    @property
    def idle_devices(self) -> int:
        """The number of devices of the machine that the mesh does not use."""
        return self.topology.machine_devices - self.mesh.devices

    @property
    def check_command(self) -> str:
        """The command that checks the version on all devices of the machine."""
        return _check_command(self.path, self.topology, has_rules=self.mesh.model > 1)


def read_numbered(path: Path, kind: type[_Read]) -> _Read:
    """Read the fields of a version's manifest that `kind` has.

    Raises SourceUnreadable if it is no version, or one without a number.
    """
    manifest = read_manifest(path, kind)
    if not path.absolute().name.isdecimal():
        raise SourceUnreadable(f"{path} is not named by a number, and servers load only numbered directories")
    return manifest


def _check_command(path: Path, topology: TpuTopology, *, has_rules: bool) -> str:
    """Return the command for a mesh of all devices. A version with shard rules splits weights, others batches."""
    words = ["tpuserve", "check", str(path), "--tpu", topology.name]
    if topology.machine_devices > 1:
        words += ["--mesh", f"{'model' if has_rules else 'data'}={topology.machine_devices}"]
    return f"{shlex.join([*words, '--json'])} > check.json"


def _check_same_version(
    path: Path, check: Path, report: CheckReport, manifest: ManifestRows, device: DeviceRows
) -> None:
    fingerprints = {one for one in (report.fingerprint, manifest.fingerprint) if one is not None}
    expected = {(name, *_size(one)) for name, part in device.parts.items() for one in part.programs}
    if len(fingerprints) > 1 or {(row.part, *_size(row)) for row in report.preflight} != expected:
        raise OptionConflict(f"--check {check} is the report of another version than {path}")


def _size(program: ProgramSize) -> tuple[int | None, int | None]:
    return program.batch_size, program.sequence_length


def _refuse_unchecked(
    path: Path, topology: TpuTopology, rows: PreflightRows, check: Path | None, *, has_rules: bool
) -> NoReturn:
    holder = f"version {path.name}" if check is None else str(check)
    known = ", ".join(rows.topologies) or "no TPU"
    raise NotChecked(
        f"{holder} was checked for {known}, and not for {topology.name}. Run\n"
        f"  {_check_command(path, topology, has_rules=has_rules)}\n"
        "and render again with --check check.json"
    )


def _check_fits(path: Path, topology: TpuTopology, programs: Iterable[ProgramRow], together: TogetherRow) -> int:
    """Return the bytes that all programs need on one device. Raises DoesNotFit."""
    head = f"version {path.name} cannot run on {topology.name}"
    failed = next((row for row in programs if row.verdict != _FITS), None)
    if failed is not None:
        raise DoesNotFit(f"{head}: {failed.bucket}: {failed.reason}. {_remedy(path, topology)}")
    needed, available = together.hbm_bytes.needed, together.hbm_bytes.available
    if needed is None:
        raise DoesNotFit(f"{head}: the memory of all programs together is unknown. {_remedy(path, topology)}")
    if needed > available:
        raise DoesNotFit(
            f"{head}: all programs together need {in_gib(needed)} of {gibibytes(available)} a device, "
            f"{gibibytes(needed - available)} too much. {_remedy(path, topology)}"
        )
    return needed


def _remedy(path: Path, topology: TpuTopology) -> str:
    return f"`{shlex.join(['tpuserve', 'check', str(path), '--tpu', topology.name])}` lists alternatives that fit"
