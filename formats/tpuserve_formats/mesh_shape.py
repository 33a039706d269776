"""MeshShape: over how many devices a version is spread (`--mesh data=2,model=4`), and along which of two axes."""

import re
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_formats.errors import FormatError

AXES: Final = ("data", "model")
_AXIS = re.compile(r"(data|model)=(0*[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class MeshShape:
    """The rows of a batch are split over `data` devices; weights, by the version's rules, over `model`."""

    data: int = 1
    model: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `data=N,model=M`; an omitted axis has one device.

        Raises:
            FormatError: the text is something else.
        """
        sizes: dict[str, int] = {}
        for part in text.split(","):
            axis = _AXIS.fullmatch(part.strip())
            if axis is None or axis[1] in sizes:
                raise FormatError(f"expected data=N,model=M with whole numbers from 1, or one of the two; got {text!r}")
            sizes[axis[1]] = int(axis[2])
        return cls(**sizes)

    @property
    def devices(self) -> int:
        """How many it takes."""
        return self.data * self.model

    def __str__(self) -> str:
        return f"data={self.data},model={self.model}"
