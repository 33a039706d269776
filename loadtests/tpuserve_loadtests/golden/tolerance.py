"""Limits on the difference between an answer and its golden one, with their reasons."""

from dataclasses import dataclass
from typing import Final

from tpuserve_client.dtypes import DType

# The exporter's defaults: kernels for other batch sizes round differently, by a few units of the dtype's last place.
_COARSE: Final = {"bfloat16": (2e-2, 2e-2), "float16": (2.5e-3, 2.5e-3)}
_FINE: Final = (1e-5, 1e-4)
_CHANGE: Final = "change with --atol/--rtol"


@dataclass(frozen=True, slots=True)
class Precision:
    """The tolerance that the exporter held a version to. `origin` names the manifest, for people; empty without one."""

    compute_dtype: str
    atol: float
    rtol: float
    origin: str = ""

    def __str__(self) -> str:
        origin = f"from {self.origin}" if self.origin else "without a manifest"
        return f"{self.compute_dtype}, {origin}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """A difference of up to `atol + rtol * |golden|`. `reason` names the dtype or the options that set it."""

    atol: float
    rtol: float
    reason: str

    def __str__(self) -> str:
        return f"{self.atol:g} + {self.rtol:g} * |golden| ({self.reason})"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The limit for floats. `atol` and `rtol` are the options' values and win; None takes the widest of `versions`.

    `versions` are those that answer and those that gave golden answers. None stands for a version without a known
    manifest, whose limit follows from the dtype of its outputs. A tolerance without versions takes that limit too.
    """

    atol: float | None = None
    rtol: float | None = None
    versions: tuple[Precision | None, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Return whether the options set both limits."""
        return self.atol is not None and self.rtol is not None

    def of(self, dtype: DType) -> Allowed:
        """Return the limit for outputs of a dtype."""
        found = [each or _of_outputs(dtype) for each in self.versions or (None,)]
        # Among equals, the reason names a reduced precision.
        widest = max(found, key=lambda each: (each.atol, each.rtol, each.compute_dtype != "float32"))
        atol = widest.atol if self.atol is None else self.atol
        rtol = max(each.rtol for each in found) if self.rtol is None else self.rtol
        return Allowed(atol, rtol, self._reason(widest))

    def _reason(self, widest: Precision) -> str:
        if self.is_fixed:
            return "set with --atol and --rtol"
        if self.atol is not None:
            return f"--atol as set, --rtol of {widest}"
        return f"{widest}; {_CHANGE}" if self.rtol is None else f"--rtol as set, --atol of {widest}"


def _of_outputs(dtype: DType) -> Precision:
    return Precision(dtype.name, *_COARSE.get(dtype.name, _FINE))
