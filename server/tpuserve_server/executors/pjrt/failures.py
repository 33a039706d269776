"""Conversion of PJRT's errors to a canonical code and one line without internal details."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import jax

from tpuserve_server.core.terms.errors import Code, Internal, ResourceExhausted, ServingError, error_for_code
from tpuserve_server.core.terms.servable import DeviceGauge

# XLA's messages begin with the code's name.
_CODED = re.compile(r"([A-Z_]+): (.*)", re.DOTALL)


@contextmanager
def device_errors(action: str) -> Iterator[None]:
    """Raise XLA's errors as ServingError: `{action} failed: …`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise _served(action, str(error)) from error


def _served(action: str, message: str) -> ServingError:
    coded = _CODED.match(message)
    code = Code.__members__.get(coded[1]) if coded else None
    if coded is None or code is None:
        return Internal(f"{action} failed: {_first_line(message)}")
    if code is Code.RESOURCE_EXHAUSTED:
        return ResourceExhausted(f"{action} failed, the device is out of memory: {_first_line(coded[2])}")
    return error_for_code(code, f"{action} failed: {_first_line(coded[2])}")


def _first_line(message: str) -> str:
    return message.strip().split("\n", 1)[0].strip()


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free memory and limit of the fullest device, in bytes; None if unknown, as on a CPU."""

    free_bytes: int | None
    limit_bytes: int | None

    @classmethod
    def of(cls, gauges: Sequence[DeviceGauge]) -> Self:
        """Read the free memory from the gauges now."""
        memories = [gauge.memory_bytes() for gauge in gauges]
        known = [(one["limit"] - one["in_use"], one["limit"]) for one in memories if {"limit", "in_use"} <= one.keys()]
        return cls(*min(known, default=(None, None)))

    @contextmanager
    def errors(self, action: str, requested_bytes: int | None) -> Iterator[None]:
        """Raise XLA's errors as `device_errors` does. Out-of-memory errors report `requested_bytes` of one device."""
        try:
            with device_errors(action):
                yield
        except ResourceExhausted as error:
            requested = [f"{in_units(requested_bytes)} requested"] if requested_bytes is not None else []
            facts = ", ".join([*requested, str(self)])
            raise ResourceExhausted(f"{error.message.rstrip('.')} ({facts}{self._doubt(requested_bytes)})") from error

    def _doubt(self, requested_bytes: int | None) -> str:
        """Return why memory ran out although enough seemed free: JAX counts neither pieces nor other processes."""
        if requested_bytes is None or self.free_bytes is None or requested_bytes > self.free_bytes:
            return ""
        return ", but in pieces or used by another process"

    def __str__(self) -> str:
        """Return a text such as `1.2 GiB of 15.7 GiB free before`."""
        if self.free_bytes is None or self.limit_bytes is None:
            return "the device does not report its free memory"
        return f"{in_units(self.free_bytes)} of {in_units(self.limit_bytes)} free before"


def in_units(size_bytes: int) -> str:
    """Return a text such as `512 bytes` or `1.2 GiB`."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size_bytes} bytes"
