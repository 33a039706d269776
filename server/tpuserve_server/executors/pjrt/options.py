"""What the operator said about device programs. Imports no JAX, which a server without them does not need."""

from dataclasses import dataclass, field
from pathlib import Path

from tpuserve_server.core.mesh_shape import MeshShape


@dataclass(frozen=True, slots=True)
class PjrtOptions:
    """What the operator said: `tpu`, `gpu`, `cpu` or `auto`; devices of a version; where compiled programs are kept.

    `max_in_flight`: batches on the device or on their way. On a CPU the second would take its cores from the first.
    """

    device: str = "auto"
    mesh: MeshShape = field(default_factory=MeshShape)
    compilation_cache_dir: Path | None = None
    max_in_flight: int = 2
    max_in_flight_on_cpu: int = 1
