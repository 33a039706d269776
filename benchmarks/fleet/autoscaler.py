"""Kubernetes' HorizontalPodAutoscaler on virtual time: its formula, its behaviour and its settings in a manifest.

The rules are those of pkg/controller/podautoscaler (replica_calculator.go and horizontal.go). KEDA scales through such
an autoscaler with an external metric: the sum over the pods, divided by the threshold.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

# --horizontal-pod-autoscaler-sync-period and --horizontal-pod-autoscaler-tolerance of the controller.
SYNC_S: Final = 15.0
TOLERANCE: Final = 0.1
# Defaults of autoscaling/v2.
_DOWN_WINDOW_S: Final = 300.0
_UP: Final = ({"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15})
_DOWN: Final = ({"type": "Percent", "value": 100, "periodSeconds": 15},)
_SUFFIXES: Final = {"m": 1e-3, "": 1.0, "k": 1e3}


@dataclass(frozen=True, slots=True)
class _Limit:
    """A policy: `value` pods or per cent in a period."""

    is_percent: bool
    value: float
    period_s: float

    @classmethod
    def read(cls, policy: Mapping[str, Any]) -> Self:
        """Read a policy of a manifest."""
        return cls(policy["type"] == "Percent", policy["value"], policy["periodSeconds"])

    def most(self, start: int) -> int:
        """Return the most servers after an increase of `start`."""
        return math.ceil(start * (1 + self.value / 100)) if self.is_percent else start + int(self.value)

    def least(self, start: int) -> int:
        """Return the fewest servers after a decrease of `start`."""
        return int(start * (1 - self.value / 100)) if self.is_percent else start - int(self.value)


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of an autoscaler. `target` is the mean of the metric over the servers."""

    least: int
    most: int
    target: float
    up: tuple[_Limit, ...]
    down: tuple[_Limit, ...]
    up_window_s: float
    down_window_s: float

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> Self:
        """Read a HorizontalPodAutoscaler with one metric of pods. Raises KeyError and ValueError for another one."""
        spec = manifest["spec"]
        [metric] = spec["metrics"]
        behavior = spec.get("behavior", {})
        up, down = behavior.get("scaleUp", {}), behavior.get("scaleDown", {})
        if {up.get("selectPolicy", "Max"), down.get("selectPolicy", "Max")} != {"Max"}:
            raise ValueError("selectPolicy other than Max")
        return cls(
            spec["minReplicas"],
            spec["maxReplicas"],
            quantity(metric["pods"]["target"]["averageValue"]),
            tuple(map(_Limit.read, up.get("policies", _UP))),
            tuple(map(_Limit.read, down.get("policies", _DOWN))),
            up.get("stabilizationWindowSeconds", 0),
            down.get("stabilizationWindowSeconds", _DOWN_WINDOW_S),
        )


def quantity(text: str) -> float:
    """Return the value of a quantity such as `700m`."""
    digits = text.rstrip("mk")
    return float(digits) * _SUFFIXES[text.removeprefix(digits)]


def wanted_by_pods(current: int, metrics: Sequence[float | None], target: float) -> int:
    """Return the servers for a metric of pods. None: a pod has no metric yet, because it starts.

    Such a pod counts as 0 for an increase, and as the target for a decrease.
    """
    known = [value for value in metrics if value is not None]
    if not known:
        return current
    ratio = sum(known) / len(known) / target
    if len(known) == len(metrics):
        return current if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * len(known))
    filled = [value if value is not None else target if ratio < 1 else 0.0 for value in metrics]
    new = sum(filled) / len(filled) / target
    if abs(1 - new) <= TOLERANCE or (ratio < 1) != (new < 1):
        return current
    wanted = math.ceil(new * len(filled))
    return current if (new < 1) == (wanted > current) else wanted


def wanted_by_sum(current: int, total: float, target: float) -> int:
    """Return the servers for an external metric with an average value, as KEDA gives one."""
    ratio = total / (target * current)
    return current if abs(1 - ratio) <= TOLERANCE else math.ceil(total / target)


class Autoscaler:
    """The state of one autoscaler. Call `decide` every SYNC_S."""

    def __init__(self, settings: Settings) -> None:
        """Start without a history."""
        self._settings = settings
        self._wishes: deque[tuple[float, int]] = deque()
        # Changes of the number of servers: time, and servers added.
        self._changes: deque[tuple[float, int]] = deque()

    def decide(self, now_s: float, current: int, wanted: int) -> int:
        """Return the number of servers from now on, of `current` ones and a metric that asks for `wanted`."""
        settings = self._settings
        self._wishes.append((now_s, wanted))
        while self._wishes[0][0] < now_s - max(settings.up_window_s, settings.down_window_s):
            self._wishes.popleft()
        lowest = min(wish for at_s, wish in self._wishes if at_s >= now_s - settings.up_window_s)
        highest = max(wish for at_s, wish in self._wishes if at_s >= now_s - settings.down_window_s)
        # Up to the lowest wish of one window, and down to the highest of the other.
        stable = min(max(current, lowest), highest)
        chosen = max(min(stable, settings.most), settings.least)
        if chosen > current:
            chosen = min(chosen, max(limit.most(self._start(now_s, current, limit)) for limit in settings.up))
        elif chosen < current:
            chosen = max(chosen, min(limit.least(self._start(now_s, current, limit)) for limit in settings.down))
        if chosen != current:
            self._changes.append((now_s, chosen - current))
        return chosen

    def _start(self, now_s: float, current: int, limit: _Limit) -> int:
        """Return the servers at the start of a policy's period."""
        return current - sum(change for at_s, change in self._changes if at_s > now_s - limit.period_s)
