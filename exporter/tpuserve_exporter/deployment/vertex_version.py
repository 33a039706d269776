"""A version that a deployment on Vertex AI serves, and its needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tpuserve_exporter.deployment.checked_version import CheckedVersion, read_numbered
from tpuserve_exporter.deployment.example_request import SignatureRows
from tpuserve_exporter.deployment.preflight_rows import ManifestRows
from tpuserve_exporter.deployment.server_needs import ServerNeeds
from tpuserve_exporter.deployment.vertex_machine import VertexMachine
from tpuserve_exporter.options.tpu_topology import GIB

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
