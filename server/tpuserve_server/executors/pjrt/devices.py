"""The devices that PJRT finds, and how a version's arrays are spread over them."""

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from tpuserve_formats.manifest.device import DeviceShardRule
from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.types import Array
from tpuserve_server.executors.pjrt.busy_time import BusyTime

# What clients of a device's own call themselves, as far as it is not the device.
_KINDS = {"cuda": "gpu", "rocm": "gpu"}
# Of each kind of device the module that its client is in, and the extra of tpuserve-server that brings it.
_CLIENTS = {"tpu": ("libtpu", "tpu"), "gpu": ("jax_cuda13_plugin", "cuda")}
# Bytes; what XLA asks of the memory that it computes in on a CPU.
_ALIGNMENT = 64
# memory_stats() of PJRT's clients.
_MEMORY = {"in_use": "bytes_in_use", "peak": "peak_bytes_in_use", "limit": "bytes_limit"}


class NoAccelerator(FailedPrecondition):
    """PJRT finds neither a TPU nor a GPU."""


def find_devices(wanted: str, count: int = 1) -> list[jax.Device]:
    """The first `count` devices of the kind: `tpu`, `gpu`, `cpu`, or `auto` for a TPU or else a GPU.

    Slow at first, as it starts JAX's clients.

    Raises:
        NoAccelerator: `auto` finds none.
        FailedPrecondition: there are none of that kind, or too few.
    """
    _quieten_libtpu()
    if wanted == "cpu":
        # Only this client is started: a TPU that somebody else holds is left alone.
        jax.config.update("jax_platforms", "cpu")
    try:
        found: list[jax.Device] = jax.devices()
    except RuntimeError as error:
        raise FailedPrecondition(f"PJRT cannot start: {_first_line(error)}") from error
    kind = kind_of(found[0])
    if wanted == "auto" and kind == "cpu":
        raise NoAccelerator("PJRT found no TPU or GPU")
    if wanted not in ("auto", kind):
        raise FailedPrecondition(f"PJRT found {_describe(found)} only{_why_not(wanted)}")
    if count > len(found):
        # Of a CPU there are as many as one asks XLA for, to try a mesh out.
        more = f"; XLA_FLAGS=--xla_force_host_platform_device_count={count} makes so many of a CPU"
        there = f"the mesh takes {count} devices; PJRT found {_describe(found)}"
        raise FailedPrecondition(f"{there}{more if wanted == 'cpu' else ''}")
    return found[:count]


def kind_of(device: jax.Device) -> str:
    """`tpu`, `gpu` or `cpu`."""
    platform: str = device.platform
    return _KINDS.get(platform, platform)


def _quieten_libtpu() -> None:
    """Set the variables that libtpu misses on a machine without a TPU: it would log errors before the real reason.

    JAX sets TPU_SKIP_MDS_QUERY where it finds no TPU on the bus. The device files belong to a TPU's drivers.
    """
    has_driver = any(glob(pattern) for pattern in ("/dev/accel*", "/dev/vfio/[0-9]*"))
    if os.environ.get("TPU_SKIP_MDS_QUERY") and not has_driver:
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise FailedPrecondition(f"the shard rule {pattern!r} is no regular expression: {error}") from error


def _describe(devices: Sequence[jax.Device]) -> str:
    """`2 of tpu (TPU v5 lite)`; a CPU is only that."""
    kind, model = kind_of(devices[0]), devices[0].device_kind
    named = kind if model == kind else f"{kind} ({model})"
    return f"{len(devices)} of {named}" if len(devices) > 1 or kind != "cpu" else named


def _why_not(wanted: str) -> str:
    """That its client is not installed, or what kept it from starting, where JAX has tried and went on without it."""
    module, extra = _CLIENTS.get(wanted, ("jax", "pjrt"))
    if importlib.util.find_spec(module) is None:
        return f", and no client for a {wanted.upper()} is installed: pip install 'tpuserve-server[{extra}]'"
    try:
        jax.devices(wanted)
    except RuntimeError as error:
        return f" ({_first_line(error)})"
    return ""


def _copy(array: Array) -> Array:
    """In memory that a CPU's client takes as it is, so that there is one copy and no second."""
    content = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -content.ctypes.data % _ALIGNMENT
    copied: Array = content[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copied, array)
    return copied


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip()


@dataclass(frozen=True, slots=True)
class PjrtGauge:
    """core.device_metrics.DeviceGauge. All devices of a mesh share one time."""

    device: jax.Device
    busy: BusyTime

    @property
    def name(self) -> str:
        """As the protocol."""
        return f"{kind_of(self.device)}:{self.device.id}"

    def busy_s(self) -> float:
        """As the protocol."""
        return self.busy.total_s()

    def memory_bytes(self) -> Mapping[str, int]:
        """As the protocol; nothing of a CPU, whose memory is the process's."""
        stats = self.device.memory_stats() or {}
        return {name: int(stats[key]) for name, key in _MEMORY.items() if key in stats}


class Placement:
    """Where arrays go: all to one device, or spread over a mesh."""

    def __init__(self, devices: Sequence[jax.Device], shape: MeshShape, rules: Sequence[DeviceShardRule]) -> None:
        """`rules` say which weights are split over `model`; the first whose pattern is found in a name holds."""
        self.devices = devices
        self.shape = shape
        self._rules = [(_compile(rule.pattern), rule.axes) for rule in rules]
        self._mesh: Mesh | None = None
        if shape.devices > 1:
            grid = np.array(devices, dtype=object).reshape(shape.data, shape.model)
            self._mesh = Mesh(grid, ("data", "model"))

    def of_weight(self, name: str, shape: Sequence[int]) -> Sharding:
        """Where a weight goes.

        Raises:
            FailedPrecondition: the rule for it does not fit its shape.
        """
        if self._mesh is None:
            return SingleDeviceSharding(self.devices[0])
        axes = next((axes for pattern, axes in self._rules if pattern.search(name)), ())
        sizes = {"data": self.shape.data, "model": self.shape.model}
        if unknown := [axis for axis in axes if axis is not None and axis not in sizes]:
            raise FailedPrecondition(
                f"the shard rule for weight '{name}' names axis '{unknown[0]}'; a mesh has {list(sizes)}"
            )
        if len(axes) > len(shape):
            raise FailedPrecondition(f"the shard rule for weight '{name}' has {len(axes)} axes; it has {len(shape)}")
        for size, axis in zip(shape, axes, strict=False):
            if axis is not None and size % sizes[axis]:
                raise FailedPrecondition(
                    f"weight '{name}' of shape {list(shape)} cannot be split along {axis}={sizes[axis]}: "
                    f"{size} is no multiple of it"
                )
        return NamedSharding(self._mesh, PartitionSpec(*axes))

    def of_rows(self, size: int | None) -> Sharding:
        """Where an input or output goes whose first dimension is that of `size` rows; None: it has no rows.

        Rows that `data` does not divide go to every device.
        """
        if self._mesh is None:
            return SingleDeviceSharding(self.devices[0])
        split = size is not None and size % self.shape.data == 0
        return NamedSharding(self._mesh, PartitionSpec("data") if split else PartitionSpec())

    def is_split_in_vain(self, weights: Sequence[jax.Array]) -> bool:
        """Whether several devices are there for weights to be split over, and none of `weights` is."""
        return self.shape.model > 1 and all(weight.is_fully_replicated for weight in weights)

    def put(self, array: Array, sharding: Sharding) -> jax.Array:
        """A copy of `array` on the devices, and no view of its memory; may return before it has been made."""
        # A CPU's client takes aligned memory as it is, whatever device_put is told (`may_alias`, jax 0.10).
        return jax.device_put(_copy(array) if kind_of(self.devices[0]) == "cpu" else array, sharding)

    def __str__(self) -> str:
        """`TPU v5 lite, mesh data=2,model=4`"""
        model = self.devices[0].device_kind
        named = model.upper() if model == "cpu" else model
        return f"{named}, mesh {self.shape}" if self._mesh is not None else named
