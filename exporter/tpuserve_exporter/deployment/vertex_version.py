"""A version that a deployment on Vertex AI serves, and its needs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from tpuserve_exporter.deployment.checked_version import CheckedVersion, read_numbered
from tpuserve_exporter.deployment.preflight_rows import ManifestRows
from tpuserve_exporter.deployment.server_needs import ServerNeeds
from tpuserve_exporter.deployment.vertex_machine import VertexMachine
from tpuserve_exporter.options.tpu_topology import GIB

_DEFAULT_SIGNATURE: Final = "serving_default"
# An example with more values is too long for a script.
_MOST_VALUES: Final = 1024
_VALUES: Final = {"string": "", "bool": False, "float16": 0.0, "bfloat16": 0.0, "float32": 0.0, "float64": 0.0}


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TensorRow(_Row):
    """An input in a manifest. None in `shape` is a free dimension, and a `shape` of None an unknown rank."""

    dtype: str
    shape: tuple[int | None, ...] | None
    row_splits: tuple[str, ...] | None = None


class SignatureRow(_Row):
    """The inputs of a signature by name."""

    inputs: Mapping[str, TensorRow]


class SignatureRows(_Row):
    """The signatures in a manifest by name."""

    signatures: Mapping[str, SignatureRow]

    def example(self) -> dict[str, Any] | None:
        """Return a request with one instance for the default signature, or for the first one.

        Return None if JSON cannot express an input as rows, or if the example has more than 1,024 values.
        """
        names = list(self.signatures)
        if not names:
            return None
        name = _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in names else names[0]
        inputs = self.signatures[name].inputs
        values = {key: _row(tensor) for key, tensor in inputs.items()}
        if not values or None in values.values() or sum(_size(one) for one in inputs.values()) > _MOST_VALUES:
            return None
        instance = values if len(values) > 1 else next(iter(values.values()))
        parameters = {} if name == _DEFAULT_SIGNATURE else {"parameters": {"signature_name": name}}
        return {"instances": [instance], **parameters}

    @property
    def has_text(self) -> bool:
        """True if an input is a string, of which the example has empty ones."""
        return any(one.dtype == "string" for row in self.signatures.values() for one in row.inputs.values())


def _size(tensor: TensorRow) -> int:
    return math.prod(_sizes(tensor.shape or ()))


def _sizes(shape: Sequence[int | None]) -> list[int]:
    """Return the sizes without the rows, with 1 for each free dimension."""
    return [1 if size is None else size for size in shape[1:]]


def _row(tensor: TensorRow) -> Any:  # noqa: ANN401 - nested lists, or one value
    """Return the value of one row, or None for a tensor without rows, a ragged tensor, and a dtype without JSON."""
    value = 0 if "int" in tensor.dtype else _VALUES.get(tensor.dtype)
    if value is None or not tensor.shape or tensor.shape[0] is not None or tensor.row_splits is not None:
        return None
    if _size(tensor) > _MOST_VALUES:
        return None
    row: Any = value
    for size in reversed(_sizes(tensor.shape)):
        row = [row] * size
    return row


# Memory of a server on a CPU without the version, as in deploy/kubernetes/base. An allowance, and not a measurement.
_PROCESS_GIB: Final = 2


@dataclass(frozen=True, slots=True)
class VertexVersion:
    """A version that fits on `machine`.

    `needed_gib` is the memory of a server. `startup_s` is its startup budget, or None on a CPU, where it is unknown.
    `variables` are the environment variables that the server needs on the machine. `example` is a request with
    placeholders, or None if the signature has no short one. `has_text` is true if it has empty strings.
    """

    path: Path
    machine: VertexMachine
    needed_gib: int
    startup_s: int | None
    example: dict[str, Any] | None
    has_text: bool
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, machine: VertexMachine, check: Path | None = None) -> Self:
        """Read a version for `machine`. `check` is a report of a preflight, as in `CheckedVersion.read`.

        A server on a CPU needs 2 GiB and the size of all files, rounded up to whole GiB. `ServerNeeds` has the memory
        of a server on a TPU.

        Raises:
            SourceUnreadable: `path` is no version, or has no device programs and the machine has a TPU.
            OptionConflict: `check` is the report of another version.
            NotChecked: the version was not checked for the TPU.
            DoesNotFit: the TPU or the memory of the machine is too small.
        """
        signatures = read_numbered(path, SignatureRows)
        if machine.topology is None:
            needed_gib = _PROCESS_GIB + math.ceil(read_numbered(path, ManifestRows).size_bytes / GIB)
            startup_s, variables = None, {}
        else:
            checked = CheckedVersion.read(path, machine.topology, check)
            needs = ServerNeeds.of(checked)
            needed_gib, startup_s = needs.request_gib, needs.startup_s
            variables = _tpu_variables(checked)
        machine.check_memory(needed_gib)
        return cls(path, machine, needed_gib, startup_s, signatures.example(), signatures.has_text, variables)

    @property
    def base_name(self) -> str:
        """The name of the base path, which is usually the model's name."""
        return self.path.absolute().parent.name

    @property
    def number(self) -> str:
        return self.path.absolute().name


def _tpu_variables(checked: CheckedVersion) -> dict[str, str]:
    # Without this variable the server falls back to the CPU if it finds no TPU.
    device = {"TPUSERVE_SERVE_DEVICE": "tpu"}
    return device if checked.mesh.devices == 1 else {**device, "TPUSERVE_SERVE_MESH": str(checked.mesh)}
