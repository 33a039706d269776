"""Devices that PJRT finds, their busy time and health, and the placement of a version's arrays on them."""

import importlib.util
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from typing import Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from tpuserve_formats.manifest.device import DeviceShardRule
from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import Code, DeviceLost, FailedPrecondition, ServingError, Unavailable, counted
from tpuserve_server.core.terms.types import Array
from tpuserve_server.executors.pjrt.locked_memory import raise_locked_memory

# Kinds of device by the client's platform, if the two names differ.
_KINDS = {"cuda": "gpu", "rocm": "gpu"}
# Client module of each kind of device, and the extra of tpuserve-server that installs it.
_CLIENTS = {"tpu": ("libtpu", "tpu"), "gpu": ("jax_cuda13_plugin", "cuda")}
# Alignment in bytes that XLA needs for memory on a CPU.
_ALIGNMENT = 64
# Keys in memory_stats() of PJRT's clients.
_MEMORY = {"in_use": "bytes_in_use", "peak": "peak_bytes_in_use", "limit": "bytes_limit"}


class NoAccelerator(FailedPrecondition):
    """Error if PJRT finds neither a TPU nor a GPU."""


def find_devices(requested: str, count: int = 1) -> list[jax.Device]:
    """Return the first `count` devices of a kind: `tpu`, `gpu`, `cpu`, or `auto` for a TPU or else a GPU.

    The first call is slow, because it starts JAX's clients.

    Raises:
        NoAccelerator: `auto` finds no TPU or GPU.
        FailedPrecondition: there are no devices of that kind, or too few.
        Unavailable: JAX cannot start a client, as while another process holds the device.
    """
    _quieten_libtpu()
    is_tpu_likely = _has_tpu_driver() and importlib.util.find_spec("libtpu") is not None
    if requested == "tpu" or (requested == "auto" and is_tpu_likely):
        raise_locked_memory()
    if requested == "cpu":
        # Start only this client, because another process may hold the TPU.
        jax.config.update("jax_platforms", "cpu")
    try:
        found: list[jax.Device] = jax.devices()
    except RuntimeError as error:
        # Another process may hold the device.
        raise Unavailable(f"PJRT cannot start: {_first_line(error)}") from error
    kind = kind_of(found[0])
    if requested == "auto" and kind == "cpu":
        raise NoAccelerator("PJRT found no TPU or GPU")
    if requested not in ("auto", kind):
        raise FailedPrecondition(f"PJRT found only {_describe(found)}{_why_not(requested)}")
    if count > len(found):
        # XLA creates any number of CPU devices on request, to try a mesh.
        more = f"; XLA_FLAGS=--xla_force_host_platform_device_count={count} creates that many CPU devices"
        mismatch = f"the mesh requires {counted(count, 'device')}; PJRT found {_describe(found)}"
        raise FailedPrecondition(f"{mismatch}{more if requested == 'cpu' else ''}")
    return found[:count]


def kind_of(device: jax.Device) -> str:
    """Return `tpu`, `gpu` or `cpu`."""
    platform: str = device.platform
    return _KINDS.get(platform, platform)


def _has_tpu_driver() -> bool:
    """Return whether a TPU's driver may have created device files. Other drivers create those of VFIO, too."""
    return any(glob(pattern) for pattern in ("/dev/accel*", "/dev/vfio/[0-9]*"))


def _quieten_libtpu() -> None:
    """Set the variables that libtpu needs on a machine without a TPU. Otherwise it logs errors before the real reason.

    JAX sets TPU_SKIP_MDS_QUERY if it finds no TPU on the bus.
    """
    if os.environ.get("TPU_SKIP_MDS_QUERY") and not _has_tpu_driver():
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise FailedPrecondition(f"the shard rule {pattern!r} is not a valid regular expression: {error}") from error


def _describe(devices: Sequence[jax.Device]) -> str:
    """Return a text such as `2 of tpu (TPU v5 lite)`, or `cpu` for one CPU."""
    kind, model = kind_of(devices[0]), devices[0].device_kind
    named = kind if model == kind else f"{kind} ({model})"
    return f"{len(devices)} of {named}" if len(devices) > 1 or kind != "cpu" else named


def _why_not(requested: str) -> str:
    """Return the reason for a missing device: its client is not installed, or failed to start."""
    module, extra = _CLIENTS.get(requested, ("jax", "pjrt"))
    if importlib.util.find_spec(module) is None:
        return f", and no client for a {requested.upper()} is installed: pip install 'tpuserve-server[{extra}]'"
    try:
        jax.devices(requested)
    except RuntimeError as error:
        return f" ({_first_line(error)})"
    return ""


def _copy(array: Array) -> Array:
    """Copy the array to memory that a CPU's client takes without a second copy."""
    content = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -content.ctypes.data % _ALIGNMENT
    copied: Array = content[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copied, array)
    return copied


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip()


class BusyTime:
    """Total time with at least one run. Thread-safe: `_lock` guards every field."""

    def __init__(self, clock: Clock) -> None:
        """Start without a run."""
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._since_s = 0.0
        self._total_s = 0.0

    def begin(self) -> None:
        """Record the start of a run."""
        with self._lock:
            if self._running == 0:
                self._since_s = self._clock.monotonic_s()
            self._running += 1

    def end(self) -> None:
        """Record the end of a run."""
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._total_s += self._clock.monotonic_s() - self._since_s

    def total_s(self) -> float:
        """Return the time up to now, in seconds."""
        with self._lock:
            running_s = self._clock.monotonic_s() - self._since_s if self._running else 0.0
            return self._total_s + running_s


@dataclass(frozen=True, slots=True)
class PjrtGauge:
    """Implementation of core.terms.servable.DeviceGauge. All devices of a mesh share one busy time."""

    device: jax.Device
    busy: BusyTime

    @property
    def name(self) -> str:
        """Name of the device, such as `tpu:0`."""
        return f"{kind_of(self.device)}:{self.device.id}"

    def busy_s(self) -> float:
        """Return the busy time in seconds."""
        return self.busy.total_s()

    def memory_bytes(self) -> Mapping[str, int]:
        """Return the memory in bytes by kind; empty for a CPU, whose memory is the process's."""
        stats = self.device.memory_stats() or {}
        return {name: int(stats[key]) for name, key in _MEMORY.items() if key in stats}


class Placement:
    """Placement of arrays, on one device or over a mesh."""

    def __init__(self, devices: Sequence[jax.Device], shape: MeshShape, rules: Sequence[DeviceShardRule]) -> None:
        """Take the `rules` that split weights over the mesh. The first whose pattern is found in a name applies."""
        self.devices = devices
        self.shape = shape
        self._rules = [(_compile(rule.pattern), rule.axes) for rule in rules]
        self._mesh: Mesh | None = None
        if shape.devices > 1:
            grid = np.array(devices, dtype=object).reshape(shape.data, shape.model)
            self._mesh = Mesh(grid, ("data", "model"))

    def of_weight(self, name: str, shape: Sequence[int]) -> Sharding:
        """Return the placement of a weight.

        Raises:
            FailedPrecondition: the rule for the weight does not fit its shape.
        """
        if self._mesh is None:
            return SingleDeviceSharding(self.devices[0])
        axes = next((axes for pattern, axes in self._rules if pattern.search(name)), ())
        sizes = {"data": self.shape.data, "model": self.shape.model}
        if unknown := [axis for axis in axes if axis is not None and axis not in sizes]:
            raise FailedPrecondition(
                f"the shard rule for weight '{name}' names axis '{unknown[0]}'; the axes of a mesh are {list(sizes)}"
            )
        if len(axes) > len(shape):
            raise FailedPrecondition(
                f"the shard rule for weight '{name}' has {len(axes)} axes; the weight has {len(shape)}"
            )
        for size, axis in zip(shape, axes, strict=False):
            if axis is not None and size % sizes[axis]:
                raise FailedPrecondition(
                    f"weight '{name}' of shape {list(shape)} cannot be split along {axis}={sizes[axis]}: "
                    f"{size} is not a multiple of {sizes[axis]}"
                )
        return NamedSharding(self._mesh, PartitionSpec(*axes))

    def of_rows(self, size: int | None) -> Sharding:
        """Return the placement of an input or output with `size` rows as its first dimension; None means no rows.

        If the size of `data` does not divide the number of rows, every device gets all rows.
        """
        if self._mesh is None:
            return SingleDeviceSharding(self.devices[0])
        split = size is not None and size % self.shape.data == 0
        return NamedSharding(self._mesh, PartitionSpec("data") if split else PartitionSpec())

    def splits_no_weight(self, weights: Sequence[jax.Array]) -> bool:
        """Return whether the mesh can split weights over several devices, but none of `weights` is split."""
        return self.shape.model > 1 and all(weight.is_fully_replicated for weight in weights)

    def put(self, array: Array, sharding: Sharding) -> jax.Array:
        """Copy `array` to the devices, never as a view of its memory. May return before the copy is complete."""
        # A CPU's client uses aligned memory without a copy, for any value of device_put's `may_alias` (jax 0.10).
        return jax.device_put(_copy(array) if kind_of(self.devices[0]) == "cpu" else array, sharding)

    def __str__(self) -> str:
        """Return a text such as `TPU v5 lite, mesh data=2,model=4`."""
        model = self.devices[0].device_kind
        named = model.upper() if model == "cpu" else model
        return f"{named}, mesh {self.shape}" if self._mesh is not None else named


# Codes of errors that may mean a lost device. XLA reports many other failures with the same codes, and the messages
# differ between devices and versions: `INTERNAL: Core halted unexpectedly`, `INTERNAL: … CUDA_ERROR_ILLEGAL_ADDRESS`,
# `FAILED_PRECONDITION: The program continuator has halted unexpectedly`. A trial on the device decides.
_SUSPECT: Final = frozenset(
    (Code.UNKNOWN, Code.FAILED_PRECONDITION, Code.ABORTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS)
)


def try_device(device: jax.Device) -> None:
    """Copy an array to a device, compute with it, and copy the result back.

    Raises:
        jax.errors.JaxRuntimeError: the device fails.
    """
    ones = jax.device_put(np.ones(8, np.float32), device)
    np.asarray(ones + ones)


class DeviceHealth:
    """The state of a mesh's devices. Any thread may call it."""

    def __init__(self, devices: Sequence[jax.Device], trial: Callable[[jax.Device], None] = try_device) -> None:
        """Try `devices` with `trial`, which raises JaxRuntimeError if a device fails."""
        self._devices = tuple(devices)
        self._trial = trial

    def explain(self, error: ServingError) -> ServingError:
        """Return the error of a failed run, or DeviceLost if a device no longer works. Blocks during the trial.

        A trial that hangs is part of the run, so the watchdog finds it.
        """
        if error.code not in _SUSPECT:
            return error
        for device in self._devices:
            try:
                self._trial(device)
            except jax.errors.JaxRuntimeError as failure:
                # A full device is not a lost one.
                if not str(failure).startswith(Code.RESOURCE_EXHAUSTED.name):
                    return DeviceLost(f"{error.message} (and {device} fails a trial)")
        return error
