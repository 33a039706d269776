"""A version's device programs on this machine's CPU, with the weights from their file, as PJRT runs them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpuserve_exporter.errors import ParityFailed, reason_of
from tpuserve_exporter.programs.lowering import compile_program, load_program, round_products
from tpuserve_exporter.programs.weights_file import map_weights, numpy_dtype
from tpuserve_exporter.terms.signature import Array, Tensors
from tpuserve_formats.manifest.device import DevicePartEntry, DeviceProgram, ManifestDevice


class ProgramModel:
    """The programs of a version with shared weights. The first run of a program compiles it."""

    def __init__(self, version: Path, device: ManifestDevice, *, in_bfloat16: bool = False) -> None:
        """Map the weights. With `in_bfloat16`, products round their operands to bfloat16, as on a TPU."""
        self._in_bfloat16 = in_bfloat16
        self._version = version
        self._weights = map_weights(version / device.weights)
        self._compiled: dict[str, Callable[..., Sequence[Any]]] = {}
        self._taken: dict[str, Sequence[Any]] = {}

    def run(self, part: DevicePartEntry, program: DeviceProgram, inputs: Tensors) -> Tensors:
        """Return the part's outputs by name, in its dtypes. Inputs must have the program's exact shapes.

        Raises ParityFailed if the program does not run.
        """
        try:
            run = self._compile(program)
            dtypes = [aval.dtype for aval in self._taken[program.file]]
            ordered: list[Array] = [inputs[name] for name in part.inputs] + [
                self._weights[name] for name in part.weights
            ]
            arguments = [value.astype(dtype, copy=False) for value, dtype in zip(ordered, dtypes, strict=True)]
            results = [np.asarray(one) for one in run(*arguments)]
        except Exception as error:  # JAX raises many kinds of errors for unsupported programs
            raise ParityFailed(
                f"{program.file} does not run on this machine's CPU: {type(error).__name__}: {reason_of(error)[:300]}"
            ) from error
        return {
            name: result.astype(numpy_dtype(tensor.dtype), copy=False)
            for (name, tensor), result in zip(part.outputs.items(), results, strict=True)
        }

    def _compile(self, program: DeviceProgram) -> Callable[..., Sequence[Any]]:
        if program.file not in self._compiled:
            loaded = load_program((self._version / program.file).read_bytes())
            if self._in_bfloat16:
                loaded = round_products(loaded)
            self._taken[program.file] = loaded.in_avals
            self._compiled[program.file] = compile_program(loaded)
        return self._compiled[program.file]
