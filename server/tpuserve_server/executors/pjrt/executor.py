"""PjrtExecutor: loads a version's device programs and weights onto the devices that PJRT finds."""

import contextlib
import functools
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Sharding

from tpuserve_formats.manifest.device import DevicePartEntry, DeviceProgram, ManifestDevice
from tpuserve_server.core.system.threads import run_in_background
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import DataLoss, FailedPrecondition, ServingError, counted, file_error
from tpuserve_server.core.terms.servable import DeviceMetrics, Executor, Servable, VersionFiles
from tpuserve_server.core.terms.types import Array, ServableId
from tpuserve_server.executors.pjrt import PjrtOptions
from tpuserve_server.executors.pjrt.devices import BusyTime, DeviceHealth, PjrtGauge, Placement, find_devices, kind_of
from tpuserve_server.executors.pjrt.failures import FreeMemory
from tpuserve_server.executors.pjrt.manifest import ProgramManifest
from tpuserve_server.executors.pjrt.part import DevicePart
from tpuserve_server.executors.pjrt.program import Program, check_version, compile_program, find_random
from tpuserve_server.executors.pjrt.servable import PjrtServable, SavedModels, SignatureProgram

# Memory-mapped weights of a version, in the safetensors format (huggingface/safetensors, README.md, "Format").
#
# The format's own library returns bfloat16 only to PyTorch, and copies the arrays that it returns to numpy.

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_LENGTH_BYTES = 8
# The library's limit, against forged headers.
_MAX_HEADER_BYTES = 100_000_000


def map_weights(path: Path) -> dict[str, Array]:
    """Return every array in the file by name, as a read-only view of one memory map.

    The map reads data on first access. The views keep it open.

    Raises:
        DataLoss: the file is truncated, or not a safetensors file.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes < _LENGTH_BYTES:
            raise DataLoss(f"{path.name} is truncated: {size_bytes} bytes")
        content: Array = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except OSError as error:
        raise file_error(f"{path.name} cannot be read", error) from error
    length = int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or start > size_bytes:
        raise DataLoss(f"{path.name} is truncated, or is not a safetensors file")
    try:
        header = json.loads(content[_LENGTH_BYTES:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _view(content[start:], entry) for name, entry in header.items()}
    # The last two: thousands of brackets, and sizes beyond 64 bits.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise DataLoss(f"{path.name} has a header that cannot be read: {type(error).__name__}: {error}") from error


def _view(data: Array, entry: Mapping[str, Any]) -> Array:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"data from {begin} to {end} does not match {entry['dtype']} {list(shape)}")
    return data[begin:end].view(dtype).reshape(shape)


_log = logging.getLogger(__name__)


class PjrtExecutor:
    """Loads versions that have device programs. Thread-safe; keeps no state between loads."""

    def __init__(
        self, options: PjrtOptions, host: Callable[[], Executor], metrics: DeviceMetrics, clock: Clock
    ) -> None:
        """Start PJRT's client. Slow.

        Call this on a thread of normal priority, which the client's threads inherit for good. `host` returns the
        executor of the SavedModels around device programs. It is called only for a version that has one.

        Raises:
            NoAccelerator: `auto` finds neither a TPU nor a GPU.
            FailedPrecondition: the requested device is not available.
        """
        self._options = options
        self._host = host
        self._metrics = metrics
        self._clock = clock
        if options.compilation_cache_dir is not None:
            _use_cache(options.compilation_cache_dir)
        self._devices = find_devices(options.device, options.mesh.devices)
        self._kind = kind_of(self._devices[0])
        self._busy = BusyTime(clock)
        self._health = DeviceHealth(self._devices)
        self._gauges = [PjrtGauge(device, self._busy) for device in self._devices]
        metrics.devices_opened(gauges=self._gauges)

    @property
    def kind(self) -> str:
        """Kind of its devices: `tpu`, `gpu` or `cpu`."""
        return self._kind

    def load(self, servable_id: ServableId, version: VersionFiles) -> PjrtServable:
        """Put the weights on the devices, compile every program and run it once, in the background. Slow.

        The export fixed the dtypes of the programs. `allows_bfloat16` applies only to the SavedModels around them.

        Raises:
            FailedPrecondition: the version has no device programs, or they are damaged or from an incompatible JAX.
            ResourceExhausted: the free memory is too small. The message reports the requested and the free memory.
            DeviceLost: a step of the load failed, and the device no longer works.
            ServingError: the programs do not compile for the device, or do not run on it.
        """
        manifest = ProgramManifest.read(version.path)
        if manifest is None:
            raise FailedPrecondition("the version has no device programs. Export it with --device-programs")
        check_version(manifest.device)
        with contextlib.ExitStack() as undo:
            # Not in the background: TensorFlow's first session starts threads that stay.
            load_saved_model = functools.partial(self._load_host, servable_id, undo)
            around = {folder: load_saved_model(version.part(folder)) for folder in _host_folders(manifest.device)}
            without = manifest.without_program
            saved_models = SavedModels(around, load_saved_model(version) if without else None, without)
            load = functools.partial(self._load, servable_id, version, manifest, saved_models, undo)
            try:
                servable = run_in_background(load, "load-pjrt")
            except ServingError as error:
                raise self._health.explain(error) from error
            undo.pop_all()
        self._metrics.device_chosen(servable=servable_id, device=self._kind)
        return servable

    def _load_host(self, servable_id: ServableId, undo: contextlib.ExitStack, model: VersionFiles) -> Servable:
        """Load a SavedModel that runs on the CPU. `undo` closes it."""
        loaded = self._host().load(servable_id, model)
        undo.callback(loaded.close)
        return loaded

    def _load(
        self,
        servable_id: ServableId,
        version: VersionFiles,
        manifest: ProgramManifest,
        saved_models: SavedModels,
        undo: contextlib.ExitStack,
    ) -> PjrtServable:
        path, device = version.path, manifest.device
        placement = Placement(self._devices, self._options.mesh, device.shard)
        free = FreeMemory.of(self._gauges)
        weights = _put_weights(path, device, placement, free, undo)
        started_s = self._clock.monotonic_s()
        compiled = self._compile(path, device, placement, weights)
        duration_s = self._clock.monotonic_s() - started_s
        self._metrics.programs_compiled(servable=servable_id, duration_s=duration_s)
        _log.info(
            "%s: compiled %s in %.3f s, put %.1f MiB of weights on %s",
            servable_id,
            counted(sum(map(len, compiled.values())), "device program"),
            duration_s,
            sum(weight.nbytes for weight in weights.values()) / 2**20,
            placement,
        )
        _try_out(device, compiled, weights, free)
        return PjrtServable(
            _signature_programs(manifest, compiled, weights, saved_models.around),
            list(weights.values()),
            saved_models,
            self._busy,
            self._health,
            device=f"{placement} (PJRT, jax {jax.__version__})",
            max_in_flight=self._options.max_in_flight,
            unrepeatable=find_random(path, device) if version.is_cached else "",
        )

    def _compile(
        self, path: Path, device: ManifestDevice, placement: Placement, weights: Mapping[str, jax.Array]
    ) -> dict[str, Sequence[Program]]:
        """Compile every part's programs, several at a time, because the compiler releases the interpreter's lock."""
        work = [(name, part, entry) for name, part in device.parts.items() for entry in part.programs]

        def compile_one(one: tuple[str, DevicePartEntry, DeviceProgram]) -> Program:
            _, part, entry = one
            taken = [weights[name] for name in part.weights]
            started_s = self._clock.monotonic_s()
            program = compile_program(path, device, part, entry, placement, taken, self._options.allowed_calls)
            self._metrics.graph_built(duration_s=self._clock.monotonic_s() - started_s, with_xla=True)
            return program

        with ThreadPoolExecutor(min(len(work), os.cpu_count() or 1), "compile") as pool:
            done = pool.map(compile_one, work)
            compiled: dict[str, list[Program]] = {}
            for (name, _, _), program in zip(work, done, strict=True):
                compiled.setdefault(name, []).append(program)
        return dict(compiled)


def _host_folders(device: ManifestDevice) -> list[str]:
    return sorted({entry.host.model for entry in device.signatures.values() if entry.host is not None})


def _signature_programs(
    manifest: ProgramManifest,
    compiled: Mapping[str, Sequence[Program]],
    weights: Mapping[str, jax.Array],
    hosts: Mapping[str, Servable],
) -> dict[str, SignatureProgram]:
    parts = {
        name: DevicePart(entry, compiled[name], [weights[weight] for weight in entry.weights])
        for name, entry in manifest.device.parts.items()
    }
    return {
        name: SignatureProgram.of(
            name, manifest, parts[entry.part], hosts[entry.host.model] if entry.host is not None else None
        )
        for name, entry in manifest.device.signatures.items()
    }


def _use_cache(path: Path) -> None:
    """Cache compiled programs in `path`. JAX compiles a damaged or foreign entry again, with a warning."""
    try:
        # The server runs the cached programs, so no other user may access them.
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        _log.warning("Cannot keep compiled programs in %s: %s", path, error.strerror)
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    # Cache every program, because the next start needs it again.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _try_out(
    device: ManifestDevice,
    compiled: Mapping[str, Sequence[Program]],
    weights: Mapping[str, jax.Array],
    free: FreeMemory,
) -> None:
    """Run every program once, one after another. Warm-up is no substitute: it ignores failures of blank rows."""
    for name, programs in compiled.items():
        part = device.parts[name]
        for program in programs:
            program.try_out(part, [weights[weight] for weight in part.weights], free)


def _put_weights(
    path: Path, device: ManifestDevice, placement: Placement, free: FreeMemory, undo: contextlib.ExitStack
) -> dict[str, jax.Array]:
    """Put each weight that a part takes on the devices, once. `undo` deletes them."""
    mapped = map_weights(path / device.weights)
    names = list(dict.fromkeys(name for part in device.parts.values() for name in part.weights))
    if missing := [name for name in names if name not in mapped]:
        raise FailedPrecondition(f"{device.weights} lacks weight '{missing[0]}'")
    shardings = {name: placement.of_weight(name, mapped[name].shape) for name in names}
    requested_bytes = sum(_bytes_per_device(mapped[name], sharding) for name, sharding in shardings.items())
    weights: dict[str, jax.Array] = {}
    with jax.enable_x64(True), free.errors("Putting the weights on the device", requested_bytes):
        for name, sharding in shardings.items():
            weights[name] = placement.put(mapped[name], sharding)
            undo.callback(weights[name].delete)
        if placement.splits_no_weight(list(weights.values())):
            _log.warning(
                "--mesh model=%d: no shard rule of the version matches a weight, so each device holds all weights",
                placement.shape.model,
            )
        # Wait, because the memory map ends when this function returns.
        jax.block_until_ready(list(weights.values()))
    return weights


def _bytes_per_device(array: Array, sharding: Sharding) -> int:
    return int(math.prod(sharding.shard_shape(array.shape)) * array.itemsize)
