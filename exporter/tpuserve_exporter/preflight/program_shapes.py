"""The arguments of a device program, read from its file without the weights."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.preflight.version_programs import VersionProgram


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a program. `dtype` is the name in numpy or JAX."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramShapes:
    """The arguments of one program: inputs in order, and weights by name."""

    inputs: tuple[Argument, ...]
    weights: Mapping[str, Argument]

    @classmethod
    def read(cls, program: VersionProgram) -> "ProgramShapes":
        """Read the arguments of a program.

        Raises SourceUnreadable if the installed JAX cannot read it, or if the number of arguments differs from the
        manifest.
        """
        arguments = _read_arguments(program)
        inputs = len(program.row_inputs)
        if len(arguments) != inputs + len(program.weights):
            raise SourceUnreadable(
                f"the program {program.file} takes {len(arguments)} arguments, but the manifest lists "
                f"{inputs} input(s) and {len(program.weights)} weight(s)"
            )
        return cls(tuple(arguments[:inputs]), dict(zip(program.weights, arguments[inputs:], strict=True)))

    @property
    def weights_bytes(self) -> int:
        return sum(one.size_bytes for one in self.weights.values())

    @property
    def has_float32(self) -> bool:
        return any(one.dtype == "float32" for one in (*self.inputs, *self.weights.values()))


def _read_arguments(program: VersionProgram) -> Sequence[Argument]:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    try:
        avals = jax.export.deserialize(bytearray(program.path.read_bytes())).in_avals
    except Exception as error:  # invalid bytes raise many kinds of errors
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SourceUnreadable(f"jax {jax.__version__} cannot read the program {program.file}: {reason}") from error
    return [Argument(tuple(aval.shape), aval.dtype.name, math.prod(aval.shape) * aval.dtype.itemsize) for aval in avals]
