"""Requests to and responses from a compiler process: plain data, sent as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# The end of a compilation: success, too large for the device's memory, refused for another reason, or unknown.
Ending = Literal["compiled", "too large", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One program to compile for one topology, on a mesh of `data` x `model` devices.

    The program's first arguments are inputs. The others are weights, and `weight_axes` has the mesh axes of their
    dimensions. `row_inputs` and `row_outputs` mark the inputs and outputs whose rows are sharded over `data`. The
    others are replicated, as in the server. `bfloat16` replaces every float32 in the program by bfloat16.
    """

    program: str
    topology: str
    data: int
    model: int
    row_inputs: tuple[bool, ...]
    row_outputs: tuple[bool, ...]
    weight_axes: tuple[tuple[str | None, ...], ...]
    bfloat16: bool = False

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> "CompileJob":
        read = json.loads(line)
        axes = tuple(tuple(one) for one in read.pop("weight_axes"))
        inputs, outputs = tuple(read.pop("row_inputs")), tuple(read.pop("row_outputs"))
        return cls(row_inputs=inputs, row_outputs=outputs, weight_axes=axes, **read)


@dataclass(frozen=True, slots=True)
class CompileOutcome:
    """The result of one compilation. All figures are for one device, and sizes are bytes of its HBM.

    `input_bytes` and the `weight_bytes` of each weight are the parts of `argument_bytes`. `logical_bytes` is the size
    of arguments and outputs without the padding of their layout. `needed_bytes` and `available_bytes` come from the
    compiler's error for a program that is too large. None means that the compiler did not report the figure.
    """

    ending: Ending
    reason: str = ""
    compile_s: float = 0.0
    argument_bytes: int = 0
    input_bytes: int = 0
    weight_bytes: tuple[int, ...] = ()
    output_bytes: int = 0
    temporary_bytes: int = 0
    code_bytes: int = 0
    alias_bytes: int = 0
    logical_bytes: int = 0
    flops: float | None = None
    bytes_accessed: float | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None

    @property
    def hbm_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes + self.temporary_bytes + self.code_bytes - self.alias_bytes

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "CompileOutcome":
        return cls(**{**read, "weight_bytes": tuple(read["weight_bytes"])})
