"""Selects the host: the requested one, or the best one that runs here."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpuserve_server.hosts.envoy.process import check_runs, embedding_library, envoy_binary, libpython
from tpuserve_server.hosts.errors import HostError

Backend: TypeAlias = Literal["envoy", "python"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected host and the reason, as text that follows `envoy: `."""

    backend: Backend
    reason: str


def select_host(requested: Literal["auto", "envoy", "python"]) -> Selection:
    """Resolve `--host_backend`. Raises HostError if Envoy was requested and cannot run. Blocks for 0.1 s."""
    if requested == "python":
        return Selection("python", "set by --host_backend")
    obstacle = envoy_obstacle()
    if obstacle is None:
        return Selection("envoy", "set by --host_backend" if requested == "envoy" else "all its requirements are met")
    if requested == "envoy":
        raise obstacle
    return Selection("python", f"Envoy cannot run here: {obstacle}")


def envoy_obstacle() -> HostError | None:
    """Return the error that prevents the Envoy host from running here, or None."""
    try:
        embedding_library()
        check_runs(envoy_binary())
        libpython()
    except HostError as error:
        return error
    return None
