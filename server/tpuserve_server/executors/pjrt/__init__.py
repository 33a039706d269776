"""Runs device programs on TPU, GPU or CPU through PJRT: declaration and options."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.executors.plugin import (
    ExecutorContext,
    ExecutorOptions,
    ExecutorPlugin,
    FlagFinding,
    Runtime,
    SafetyOptions,
)
from tpuserve_server.executors.tensorflow import saved_models

if TYPE_CHECKING:
    from tpuserve_server.executors.candidate import Candidate

JAX: Final = Runtime("JAX", "device programs", "jax", ("jax", "jaxlib", "libtpu"), "tpuserve-server[pjrt]")

Device: TypeAlias = Literal["auto", "tpu", "gpu", "cpu"]

_ONE_DEVICE = MeshShape()


def _mesh(text: str) -> MeshShape:
    """Parse a text such as `data=2,model=4`. An empty text is one device."""
    return MeshShape.parse(text) if text else _ONE_DEVICE


@dataclass(frozen=True, slots=True)
class PjrtOptions:
    """Device and mesh of device programs, and the directory of compiled programs. None disables that cache.

    `max_in_flight` is the number of batches on the device or in transfer. On a CPU, the second one uses the cores that
    the first leaves idle.
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
            is_cache=True,
        ),
    ] = None
    max_in_flight: int = 2
    # SafetyOptions.allowed_ops: custom calls that programs may have.
    allowed_calls: tuple[str, ...] = ()


def _make(context: ExecutorContext) -> "Candidate":
    from tpuserve_server.executors.pjrt.candidate import DevicePrograms

    options, allowed = context.options[PjrtOptions], context.options[SafetyOptions].allowed_ops
    directory = options.compilation_cache_dir or context.cache_dir / "tpuserve-compiled"
    options = replace(options, compilation_cache_dir=directory, allowed_calls=allowed)
    return DevicePrograms.of(options, saved_models(context), context.metrics, context.clock)


def _runs(_options: ExecutorOptions, version_path: Path) -> bool:
    """Return whether the version has device programs. Raises FailedPrecondition if they cannot be used."""
    from tpuserve_server.executors.pjrt.manifest import ProgramManifest

    return JAX.is_installed and ProgramManifest.read(version_path) is not None


def _check_flags(options: ExecutorOptions) -> Iterator[FlagFinding]:
    device = options[PjrtOptions].device
    if device in ("tpu", "gpu"):
        if JAX.is_installed:
            yield FlagFinding("ok", "device", "JAX is installed. This check does not look for the device")
        else:
            extra = {"tpu": "tpu", "gpu": "cuda"}[device]
            message = f"Device programs need JAX: pip install 'tpuserve-server[{extra}]'."
            yield FlagFinding("error", "device", message)


EXECUTOR: Final = ExecutorPlugin(JAX, PjrtOptions, _make, runs=_runs, check_flags=_check_flags)
