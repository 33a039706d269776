"""Scripts for the scripted server: service times, faults, stalls and leaks. They are plain values, sent as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

# A refusal takes this long. It is much faster than a prediction, so that a wrong mixture lowers the percentiles.
REFUSAL_S: Final = 0.002

_Kind = TypeVar("_Kind", bound=StrEnum)


class Fault(StrEnum):
    """A failure of a request. The first three are statuses, the others happen to the stream or the connection."""

    UNAVAILABLE = "unavailable"  # gRPC UNAVAILABLE, HTTP 503
    INTERNAL = "internal"  # gRPC INTERNAL, HTTP 500
    EXHAUSTED = "exhausted"  # gRPC RESOURCE_EXHAUSTED, HTTP 429
    RESET = "reset"  # RST_STREAM; over HTTP/1.1 as CUT
    CUT = "cut"  # the connection ends before the response
    TORN = "torn"  # the connection ends in the middle of the response
    SILENT = "silent"  # no response ever
    REFUSED = "refused"  # REFUSED_STREAM, which a client may retry (RFC 9113, section 8.7); over HTTP/1.1 as CUT


class Wrong(StrEnum):
    """A wrong response with status OK."""

    VALUE = "value"  # one number differs
    SWAPPED = "swapped"  # the response of another request
    MISSING = "missing"  # an output is missing
    SHAPE = "shape"  # a row too many
    NAN = "nan"  # a number is NaN
    HTML = "html"  # a page instead of a response
    ERROR = "error"  # a JSON object with an error
    EMPTY = "empty"  # no byte; over gRPC a message without fields
    HALF = "half"  # the first half of the response


# Wrong responses of the right form. Golden responses show that the model's values are finite.
OF_VALUES: Final = frozenset({Wrong.VALUE, Wrong.SWAPPED})
REFUSALS: Final = frozenset({Fault.UNAVAILABLE, Fault.INTERNAL, Fault.EXHAUSTED})
_PAGE: Final = b"<!doctype html><title>scripted</title><p>Please log in."
_ERROR: Final = b'{"error": "scripted: the model is not loaded"}'


def spoiled(wrong: Wrong, response: bytes) -> bytes | None:
    """Return the bytes that replace a response, or None for a wrong response of the right form."""
    replaced = {Wrong.HTML: _PAGE, Wrong.ERROR: _ERROR, Wrong.EMPTY: b"", Wrong.HALF: response[: len(response) // 2]}
    return replaced.get(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A server's behaviour. Times are seconds. Those that name an instant count from the first prediction.

    A prediction takes `service_s`, plus a random part of `spread_s`, plus `growth` for each second since the start.
    `slow` gives the service time of each `every`-th request instead, by `every`; the first match counts. `course` gives
    instants and the factor of the service times from there on: of those of `slow` if there are any, or else of all. A
    request whose bytes the server has seen takes `cached_s`, unless that is 0. With `slots`, at most this many run at
    once, first come, first served. From `hold_at_s`, the server sends no response for `hold_s`. From `freeze_at_s`, its
    whole process stops for `freeze_s`. At `die_at_s`, it ends. `faults` and `wrong` give the interval of each kind, in
    requests, after the first `right` requests. A value is also wrong if more than `wrong_above` requests are in flight.
    The server ends a connection after `eject_every` requests. Each request leaks `leak_bytes`. `models` are the scripts
    of the predictions of some models, which have their own counts.
    """

    service_s: float = 0.04
    spread_s: float = 0.0
    growth: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    course: Sequence[tuple[float, float]] = ()
    cached_s: float = 0.0
    slots: int = 0
    hold_at_s: float = 0.0
    hold_s: float = 0.0
    freeze_at_s: float = 0.0
    freeze_s: float = 0.0
    die_at_s: float = 0.0
    faults: Mapping[Fault, int] = field(default_factory=dict)
    wrong: Mapping[Wrong, int] = field(default_factory=dict)
    right: int = 0
    wrong_above: int = 0
    eject_every: int = 0
    leak_bytes: int = 0
    models: Mapping[str, "Script"] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the script as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the script that `to_json` encoded."""
        return cls._of(json.loads(text))

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        values["faults"] = {Fault(kind): every for kind, every in values["faults"].items()}
        values["wrong"] = {Wrong(kind): every for kind, every in values["wrong"].items()}
        values["slow"] = {int(every): slow_s for every, slow_s in values["slow"].items()}
        values["models"] = {name: cls._of(script) for name, script in values["models"].items()}
        return cls(**values)

    def factor(self, elapsed_s: float) -> float:
        """Return the factor of the service times after this time."""
        return next((factor for at_s, factor in reversed(self.course) if elapsed_s >= at_s), 1.0)

    def slow_s(self, number: int) -> float | None:
        """Return the time of a slow request `number`, counted from 1, or None if it is none."""
        return next((slow_s for every, slow_s in self.slow.items() if number % every == 0), None)

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
