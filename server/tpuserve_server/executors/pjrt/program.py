"""Program: one device program, read from its file and compiled for the available devices."""

import struct
from collections.abc import Collection, Sequence
from pathlib import Path

import jax
import numpy as np
from jax import export
from jax.sharding import Sharding

from tpuserve_formats.manifest.device import DevicePartEntry, DeviceProgram, ManifestDevice
from tpuserve_formats.manifest.tensor import DeviceTensor
from tpuserve_formats.safety.custom_calls import find_calls_in_bytecode
from tpuserve_server.core.terms.errors import FailedPrecondition, counted, file_error
from tpuserve_server.core.terms.types import Array
from tpuserve_server.executors.pjrt.devices import Placement
from tpuserve_server.executors.pjrt.failures import FreeMemory, device_errors

# Errors of jax.export for invalid bytes, and of JAX when it lowers unknown operations.
_UNREADABLE = (struct.error, ValueError, TypeError, IndexError, AttributeError, AssertionError, RuntimeError, KeyError)

# StableHLO's only operation with state, as a serialized program names it (stablehlo/dialect/VhloOps.td). Random numbers
# from a key are a function of the key.
_RANDOM = b"rng_v1"


class Program:
    """Compiled program. Any thread may run it, several at once."""

    def __init__(
        self, entry: DeviceProgram, compiled: jax.stages.Compiled, dtypes: Sequence[np.dtype[np.generic]]
    ) -> None:
        """Take a compiled program. `dtypes` are those of its inputs, without weights."""
        self._entry = entry
        self.batch_size = entry.batch_size
        self.sequence_length = entry.sequence_length
        self.dtypes = tuple(dtypes)
        self._compiled = compiled

    @property
    def needed_bytes(self) -> int | None:
        """Memory on each device in bytes: arguments including weights, outputs and temporaries. None if unknown."""
        needs = self._compiled.memory_analysis()
        if needs is None:
            return None
        return int(needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes)

    def shape_of(self, tensor: DeviceTensor) -> tuple[int, ...]:
        """Return the shape in which the program takes an input."""
        return self._entry.shape_of(tensor)

    def try_out(self, part: DevicePartEntry, weights: Sequence[jax.Array], free: FreeMemory) -> None:
        """Run once with zeros and wait for the result. A device that refuses this run would refuse every batch.

        Raises:
            ServingError: the device refuses the run. If memory ran out, the message reports the memory that it needs.
        """
        inputs = [
            np.zeros(self.shape_of(one), dtype) for one, dtype in zip(part.inputs.values(), self.dtypes, strict=True)
        ]
        with jax.enable_x64(True), free.errors(f"Running {self._entry.file}", self.needed_bytes):
            jax.block_until_ready(self._compiled(*inputs, *weights))

    def run(self, inputs: Sequence[Array], weights: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Start a run and return at once. Inputs must have the program's shapes and dtypes.

        Raises:
            ServingError: the device refuses the run.
        """
        # Without x64, JAX converts int64 to int32. The setting affects only this thread, at no measurable cost.
        with jax.enable_x64(True), device_errors("The run"):
            outputs: Sequence[jax.Array] = self._compiled(*inputs, *weights)
            for output in outputs:
                # Start all transfers before the wait for the first.
                output.copy_to_host_async()
        return outputs


def check_version(device: ManifestDevice) -> None:
    """Refuse programs of an incompatible version of JAX.

    Raises:
        FailedPrecondition: the versions are incompatible. The message names both.
    """
    convention = device.calling_convention_version
    lowest, highest = (
        export.minimum_supported_calling_convention_version,
        export.maximum_supported_calling_convention_version,
    )
    if not lowest <= convention <= highest:
        raise FailedPrecondition(
            f"the device programs were lowered with {_lowered_with(device)} (calling convention {convention}); this "
            f"server's jax {jax.__version__} runs conventions {lowest} to {highest}. Export the version again with jax "
            f"{jax.__version__}, or install {'a newer' if convention > highest else 'an older'} jax"
        )


def compile_program(
    version: Path,
    device: ManifestDevice,
    part: DevicePartEntry,
    entry: DeviceProgram,
    placement: Placement,
    weights: Sequence[jax.Array],
    allowed_calls: Collection[str] = (),
) -> Program:
    """Read a program and compile it for `weights` on their devices, in the part's order. Slow if not cached.

    Raises:
        FailedPrecondition: the file is damaged, from an incompatible JAX, or does not match the manifest. Also raised
            for custom calls that the server refuses, except `allowed_calls`.
        ServingError: the compiler refuses the program, or it does not fit on the device.
    """
    exported = _read(version / entry.file, entry.file, device)
    _check_calls(exported, entry, allowed_calls)
    count = len(part.inputs)
    _check_arguments(exported, part, entry, weights)
    inputs = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=_sharding(placement, entry, tensor))
        for aval, tensor in zip(exported.in_avals, part.inputs.values(), strict=False)
    ]
    arguments = [*inputs, *(jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=one.sharding) for one in weights)]
    returned = tuple(_sharding(placement, entry, tensor) for tensor in part.outputs.values())
    with jax.enable_x64(True):
        try:
            # JAX reads the program's operations only here.
            lowered = jax.jit(exported.call, out_shardings=returned).lower(*arguments)
        except _UNREADABLE as error:
            raise _unreadable(entry.file, device) from error
        with device_errors(f"Compiling {entry.file}"):
            compiled = lowered.compile()
    return Program(entry, compiled, [np.dtype(aval.dtype) for aval in exported.in_avals[:count]])


def find_random(version: Path, device: ManifestDevice) -> str:
    """Name a device program that draws different numbers at each run, or return "". Reads every program; blocks."""
    files = [program.file for part in device.parts.values() for program in part.programs]
    found = next((file for file in files if _RANDOM in (version / file).read_bytes()), "")
    return found and f"the device program {found} draws random numbers"


def _check_calls(exported: export.Exported, entry: DeviceProgram, allowed: Collection[str]) -> None:
    """Refuse calls of functions of the process, such as callbacks into Python. Raises FailedPrecondition."""
    found = find_calls_in_bytecode(exported.mlir_module_serialized)
    if refused := [target for target in found if target not in allowed]:
        raise FailedPrecondition(
            f"{entry.file} has custom calls that this server refuses: {', '.join(refused)}. Export the model without "
            f"them. If you trust its author, allow them: --allowed_ops={','.join(refused)}"
        )


def _check_arguments(
    exported: export.Exported, part: DevicePartEntry, entry: DeviceProgram, weights: Sequence[jax.Array]
) -> None:
    count = len(part.inputs)
    avals = exported.in_avals
    if len(avals) != count + len(part.weights) or len(exported.out_avals) != len(part.outputs):
        raise FailedPrecondition(
            f"{entry.file} takes {len(avals)} arrays and returns {len(exported.out_avals)}; the manifest lists "
            f"{counted(count, 'input')} and {counted(len(part.weights), 'weight')}, and "
            f"{counted(len(part.outputs), 'output')}"
        )
    for name, weight, aval in zip(part.weights, weights, avals[count:], strict=True):
        if (weight.shape, weight.dtype) != (aval.shape, aval.dtype):
            raise FailedPrecondition(
                f"weight '{name}' is {weight.dtype} {list(weight.shape)}, but {entry.file} takes "
                f"{aval.dtype} {list(aval.shape)}"
            )
    for (name, tensor), aval in zip(part.inputs.items(), avals, strict=False):
        shape = entry.shape_of(tensor)
        if shape != aval.shape:
            raise FailedPrecondition(
                f"input '{name}' has shape {list(shape)} in the manifest, but {entry.file} takes {list(aval.shape)}"
            )


def _sharding(placement: Placement, entry: DeviceProgram, tensor: DeviceTensor) -> Sharding:
    return placement.of_rows(entry.batch_size if tensor.has_rows else None)


def _read(path: Path, name: str, device: ManifestDevice) -> export.Exported:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise file_error(f"{name} cannot be read", error) from error
    try:
        return export.deserialize(bytearray(content))
    except _UNREADABLE as error:
        raise _unreadable(name, device) from error


def _unreadable(name: str, device: ManifestDevice) -> FailedPrecondition:
    return FailedPrecondition(
        f"{name} is damaged, or jax {jax.__version__} of this server cannot read it: it was lowered with "
        f"{_lowered_with(device)}. Export the version again"
    )


def _lowered_with(device: ManifestDevice) -> str:
    return f"jax {device.lowered_with.get('jax', 'of unknown version')}"
