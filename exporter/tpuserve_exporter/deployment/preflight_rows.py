"""The preflight's results in a manifest, and in a report of `tpuserve check --tpu --json`. Both have the same rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpuserve_exporter.errors import SourceUnreadable

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MeshRow(_Row):
    """Axes of the mesh that programs were compiled for."""

    data: int = Field(ge=1)
    model: int = Field(ge=1)


class ProgramSize(_Row):
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


class HbmRow(_Row):
    """Bytes of one device's memory. None: unknown, because a program did not compile."""

    needed: int | None
    available: int


class TogetherRow(_Row):
    """The verdict on all programs together for one topology."""

    topology: str
    mesh: MeshRow
    verdict: str
    hbm_bytes: HbmRow
    side_by_side: int | None = None


class PreflightRows(_Row):
    """All results of one preflight."""

    preflight: tuple[ProgramRow, ...] = ()
    preflight_together: tuple[TogetherRow, ...] = ()

    @property
    def topologies(self) -> list[str]:
        """Names of the topologies, without duplicates, in order."""
        return list(dict.fromkeys(row.topology for row in self.preflight))


class _Part(_Row):
    programs: tuple[ProgramSize, ...]


class DeviceRows(PreflightRows):
    """The manifest's `device`. `weights` is the file of the weights. With `shard`, they can be split."""

    weights: str = ""
    parts: Mapping[str, _Part]
    signatures: Mapping[str, Any] = Field(default_factory=dict)
    shard: tuple[Any, ...] = ()


class _File(_Row):
    size_bytes: int = Field(ge=0)


class ManifestRows(_Row):
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
