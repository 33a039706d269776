"""What a compiler's process is asked and what it answers: plain data, as JSON on its way."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# How a compilation ended: a program; too large for the device's memory; refused for another reason; nobody knows.
Ending = Literal["compiled", "too large", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One program for one topology.

    On `data` times `model` of its devices. Of the program's arguments the first are inputs, the others weights, each
    with the mesh axes of its dimensions. `row_inputs` and `row_outputs` say which inputs and outputs are cut over
    `data`, by their rows; all others are whole on every device, as a server has them. `bfloat16` tries the program with
    every float32 in it in 16 bits.
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
    """Sizes are bytes of one device's HBM, flops and bytes accessed of one device too; None is what was not said.

    `input_bytes` and, for each weight, `weight_bytes` are what `argument_bytes` are made of. `logical_bytes` is what
    arguments and outputs would take without the padding of their layout. `needed_bytes` and `available_bytes` are the
    compiler's own words on a program that is too large.
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
