"""MeshShape: the number of devices of a version on each of two mesh axes (`--mesh data=2,model=4`)."""

import re
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_formats.errors import FormatError

AXES: Final = ("data", "model")
_AXIS = re.compile(r"(data|model)=(0*[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Batch rows are split over `data` devices, and weights over `model` devices by the version's rules."""

    data: int = 1
    model: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `data=N,model=M`. An omitted axis has one device.

        Raises:
            FormatError: the text has another format.
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
        """Number of devices."""
        return self.data * self.model

    def __str__(self) -> str:
        return f"data={self.data},model={self.model}"
