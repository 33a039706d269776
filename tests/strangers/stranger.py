"""Records of the table: a third-party model, its exports, and their expected results.

tests/strangers/models contains the code of the models, which does not use this project. This module imports no
framework, so that a program can list the models without any.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = Mapping[str, Array]
# Inputs of one request, and the outputs that the source framework computes for them.
Exchange: TypeAlias = tuple[Tensors, Tensors]
# Exchanges by signature. `photo:jpeg` is also the signature `photo`, with a separate line in the table.
Answers: TypeAlias = Mapping[str, list[Exchange]]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limit of differences: `absolute + relative * |expected|`, as in `tpuserve export`."""

    absolute: float = 1e-5
    relative: float = 1e-4

    def __str__(self) -> str:
        return f"{self.absolute:g} + {self.relative:g}·|x|"


BFLOAT16 = Tolerance(2e-2, 2e-2)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An expected exit code of `tpuserve export`, and a phrase of its message.

    If `required`, a published version is wrong. Otherwise the export may publish one, whose outputs must be correct.
    """

    exit_code: int
    phrase: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Export:
    """A user's way to export a third-party model.

    `source` is its name in the table. The command is `tpuserve export PATH OUT_BASE OPTIONS`, with PATH in the model's
    directory. With `script` (`module:function`), the user calls tpuserve_exporter.export from Python instead. The
    function takes the directory and OUT_BASE. `warning` is a phrase that the export must print.
    """

    source: str
    path: str
    options: tuple[str, ...] = ()
    script: str = ""
    refusal: Refusal | None = None
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Unexported:
    """A SavedModel at `path` in the model's directory that no server may serve as it is.

    `refusal` is a phrase of the server's error.
    """

    path: str
    refusal: str


@dataclass(frozen=True, slots=True)
class Stranger:
    """A third-party model.

    `save` (`module:function`) runs in a separate process, with PyTorch if `torch`. It takes a directory and
    `arguments`, writes the sources into the directory and returns Answers. Outputs of a row must not depend on other
    rows, unless `rows` is False: then requests are sent unchanged. `rest_refusal` is a phrase of REST's error if JSON
    cannot carry the model's tensors. `outside` are shapes of float32 inputs that its graph accepts, but a version does
    not, because its default signature has other ones. `report` names public reports of its failure, such as
    `keras-team/keras#20985`.
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
    unexported: Unexported | None = None
    outside: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    report: str = ""
