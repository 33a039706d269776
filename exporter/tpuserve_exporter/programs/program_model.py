"""A version's device programs, run on this machine's CPU with the weights from their file, as PJRT runs them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpuserve_exporter.errors import ParityFailed, reason_of
from tpuserve_exporter.programs.lowering import compile_program, load_program, round_products
from tpuserve_exporter.programs.weights_file import map_weights, numpy_dtype
from tpuserve_exporter.signature import Array, Tensors
from tpuserve_formats.manifest.device import DevicePartEntry, DeviceProgram, ManifestDevice


class ProgramModel:
    """Holds the weights once; programs are compiled when they are first run."""

    def __init__(self, version: Path, device: ManifestDevice, *, in_bfloat16: bool = False) -> None:
        """`in_bfloat16`, products are of operands rounded to that, as a TPU's are."""
        self._in_bfloat16 = in_bfloat16
        self._version = version
        self._weights = map_weights(version / device.weights)
        self._compiled: dict[str, Callable[..., Sequence[Any]]] = {}
        self._taken: dict[str, Sequence[Any]] = {}

    def run(self, part: DevicePartEntry, program: DeviceProgram, inputs: Tensors) -> Tensors:
        """The part's outputs by name, in its dtypes, for inputs of the program's very shapes. Raises ParityFailed."""
        try:
            run = self._compile(program)
            dtypes = [aval.dtype for aval in self._taken[program.file]]
            given: list[Array] = [inputs[name] for name in part.inputs] + [self._weights[name] for name in part.weights]
            arguments = [value.astype(dtype, copy=False) for value, dtype in zip(given, dtypes, strict=True)]
            results = [np.asarray(one) for one in run(*arguments)]
        except Exception as error:  # JAX raises nearly anything for what its CPU client cannot run
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
