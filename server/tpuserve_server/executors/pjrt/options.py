"""Operator's options for device programs. Imports no JAX, which a server without them does not need."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.terms.setting import Setting

Device: TypeAlias = Literal["auto", "tpu", "gpu", "cpu"]

_ONE_DEVICE = MeshShape()


def _mesh(text: str) -> MeshShape:
    """Parse a text such as `data=2,model=4`. An empty text is one device."""
    return MeshShape.parse(text) if text else _ONE_DEVICE


@dataclass(frozen=True, slots=True)
class PjrtOptions:
    """Device and mesh of device programs, and the directory of compiled programs. None disables that cache.

    `max_in_flight` is the number of batches on the device or in transfer. On a CPU, a second batch would take cores
    from the first.
    """

    device: Annotated[
        Device,
        Setting(
            "Devices",
            "Device of versions with device programs. auto: a TPU or GPU if the machine has one, else TensorFlow on "
            "the CPU. tpu, gpu: that device only. cpu: the device programs on the CPU.",
        ),
    ] = "auto"
    mesh: Annotated[
        MeshShape,
        Setting(
            "Devices",
            "Device mesh of a version: data=N,model=M splits a batch's rows over N devices, and weights by the "
            "version's shard rules over M.",
            shown_default="one device",
            parse=_mesh,
        ),
    ] = _ONE_DEVICE
    compilation_cache_dir: Annotated[
        Path | None,
        Setting(
            "Devices",
            "Directory that keeps compiled device programs for the next start.",
            shown_default="tpuserve-compiled in $XDG_CACHE_HOME or ~/.cache",
        ),
    ] = None
    max_in_flight: int = 2
    max_in_flight_on_cpu: int = 1
    # SafetyOptions.allowed_ops: custom calls that programs may have.
    allowed_calls: tuple[str, ...] = ()
