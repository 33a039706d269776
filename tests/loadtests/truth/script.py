"""Scripts for the scripted server: service times, faults, stalls and leaks. They are plain values, sent as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final, Self, TypeVar

# A refusal takes this long. It is much faster than a prediction, so that a wrong mixture lowers the percentiles.
REFUSAL_S: Final = 0.002

_Kind = TypeVar("_Kind", bound=StrEnum)


class Fault(StrEnum):
    """A failure of a request. The first three are statuses, the others happen to the connection."""

    UNAVAILABLE = "unavailable"  # gRPC UNAVAILABLE, HTTP 503
    INTERNAL = "internal"  # gRPC INTERNAL, HTTP 500
    EXHAUSTED = "exhausted"  # gRPC RESOURCE_EXHAUSTED, HTTP 429
    RESET = "reset"  # RST_STREAM; over HTTP/1.1 as CUT
    CUT = "cut"  # the connection ends before the response
    TORN = "torn"  # the connection ends in the middle of the response
    SILENT = "silent"  # no response ever


class Wrong(StrEnum):
    """A wrong response with status OK."""

    VALUE = "value"  # one number differs
    SWAPPED = "swapped"  # the response of another request
    MISSING = "missing"  # an output is missing
    SHAPE = "shape"  # a row too many
    NAN = "nan"  # a number is NaN


REFUSALS: Final = frozenset({Fault.UNAVAILABLE, Fault.INTERNAL, Fault.EXHAUSTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A server's behaviour. Times are seconds. Those that name an instant count from the first prediction.

    A prediction takes `service_s`, plus a random part of `spread_s`, plus `growth` for each second since the start.
    Every `slow_every`-th one takes `slow_s` instead. With `slots`, at most this many run at once, first come, first
    served. From `hold_at_s`, the server sends no response for `hold_s`. From `freeze_at_s`, its whole process stops for
    `freeze_s`. At `die_at_s`, it ends. `faults` and `wrong` give the interval of each kind, in requests, after the
    first `right` requests. The server ends a connection after `eject_every` requests. Each request leaks `leak_bytes`.
    """

    service_s: float = 0.04
    spread_s: float = 0.0
    growth: float = 0.0
    slow_every: int = 0
    slow_s: float = 0.0
    slots: int = 0
    hold_at_s: float = 0.0
    hold_s: float = 0.0
    freeze_at_s: float = 0.0
    freeze_s: float = 0.0
    die_at_s: float = 0.0
    faults: Mapping[Fault, int] = field(default_factory=dict)
    wrong: Mapping[Wrong, int] = field(default_factory=dict)
    right: int = 0
    eject_every: int = 0
    leak_bytes: int = 0

    def to_json(self) -> str:
        """Return the script as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the script that `to_json` encoded."""
        values = json.loads(text)
        values["faults"] = {Fault(kind): every for kind, every in values["faults"].items()}
        values["wrong"] = {Wrong(kind): every for kind, every in values["wrong"].items()}
        return cls(**values)

    def fault(self, number: int) -> Fault | None:
        """Return the fault of request `number`, counted from 1, or None."""
        return _due(self.faults, number - self.right)

    def wrongness(self, number: int) -> Wrong | None:
        """Return the kind of wrong response of request `number`, counted from 1, or None."""
        return _due(self.wrong, number - self.right)


def _due(intervals: Mapping[_Kind, int], number: int) -> _Kind | None:
    if number < 1:
        return None
    return next((kind for kind, every in intervals.items() if number % every == 0), None)
