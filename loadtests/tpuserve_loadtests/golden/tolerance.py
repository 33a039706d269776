"""How far an answer may be from its golden one."""

from dataclasses import dataclass
from typing import Final

from tpuserve_client.dtypes import DType

# As the exporter's: kernels for other batch sizes round at other places, by a few units of the dtype's last place.
_COARSE: Final = {"bfloat16": (2e-2, 2e-2), "float16": (2.5e-3, 2.5e-3)}
_FINE: Final = (1e-5, 1e-4)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Floats may differ by `atol + rtol * |golden|`; None means what the precision of their dtype asks for."""

    atol: float | None = None
    rtol: float | None = None

    def of(self, dtype: DType) -> tuple[float, float]:
        """`atol` and `rtol` for outputs of a dtype."""
        atol, rtol = _COARSE.get(dtype.name, _FINE)
        return atol if self.atol is None else self.atol, rtol if self.rtol is None else self.rtol
