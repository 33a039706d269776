"""Overload gates that accept every request, or refuse every request."""

from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.server_state import Traffic

# No version serves, so none refuses.
OPEN_GATE = OverloadGate(tuple, Traffic(), SystemClock())


class ClosedGate(OverloadGate):
    """A gate that expects each request to be 0.25 s late, at first or only when it is checked again."""

    def __init__(self, *, at_first: bool = True) -> None:
        super().__init__(tuple, Traffic(), SystemClock())
        self._is_late = at_first

    @property
    def may_refuse(self) -> bool:
        return True

    def lateness_s(self, deadline: Deadline, arrived_s: float | None = None) -> float:
        late_s = 0.25 if deadline.is_finite and self._is_late else 0.0
        self._is_late = True
        return late_s
