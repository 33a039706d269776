"""Records of the table: a stranger's model, how a user exports it, and the outcome that is expected.

The code of the models is in tests/strangers/models, which knows nothing of this project. This module imports no
framework: the program that lists strangers need not have them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = Mapping[str, Array]
# Inputs of one request, and the outputs that the source framework computes for them.
Exchange: TypeAlias = tuple[Tensors, Tensors]
# Exchanges by signature. `photo:jpeg` is the signature `photo` too, with a line of its own in the table.
Answers: TypeAlias = Mapping[str, list[Exchange]]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A value may be off by `absolute + relative * |expected|`, as in `tpuserve export`."""

    absolute: float = 1e-5
    relative: float = 1e-4

    def __str__(self) -> str:
        return f"{self.absolute:g} + {self.relative:g}·|x|"


BFLOAT16 = Tolerance(2e-2, 2e-2)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The exit code that `tpuserve export` ends with, and a phrase of its message.

    If `required`, a published version is wrong. Otherwise the export may publish one, whose answers must be right.
    """

    exit_code: int
    phrase: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Export:
    """One way that a user exports a stranger's model.

    `source` names it in the table. The command is `tpuserve export PATH OUT_BASE OPTIONS`, with PATH in the stranger's
    folder. With `script` (`module:function`), the user calls tpuserve_exporter.export from Python instead: the function
    takes the folder and OUT_BASE. `warning` is a phrase that the export has to print.
    """

    source: str
    path: str
    options: tuple[str, ...] = ()
    script: str = ""
    refusal: Refusal | None = None
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A model that somebody else wrote.

    `save` (`module:function`) runs in a process of its own, with PyTorch if `torch`. It takes a folder and `arguments`,
    writes the sources into the folder and returns Answers. Outputs of a row must not depend on other rows, unless
    `rows` is False: then requests are sent only as they are. `rest_refusal` is a phrase of the error that REST gives
    where JSON cannot carry the model's tensors.
    """

    name: str
    save: str
    exports: tuple[Export, ...]
    arguments: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    torch: bool = False
    rows: bool = True
    tolerance: Tolerance = Tolerance()
    rest_refusal: str = ""
