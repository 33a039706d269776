"""Tests for the model of Kubernetes' autoscaler as tables: its formula, and its behaviour over time."""

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.fleet.autoscaler import Autoscaler, Settings, quantity, wanted_by_pods, wanted_by_sum

TARGET = 0.7


@pytest.mark.parametrize(
    ("metrics", "wanted"),
    [
        ([2.8] * 2, 8),
        ([0.75] * 4, 4),
        ([0.64] * 4, 4),
        ([0.62] * 4, 4),
        ([0.5] * 4, 3),
        ([0.0] * 4, 0),
        # Servers that start count as idle for an increase: the mean of these four is 1.4.
        ([2.8, 2.8, None, None], 8),
        # They turn an increase into none, but never into a decrease.
        ([0.9, 0.9, None, None], 4),
        # For a decrease they count as the target.
        ([0.2, 0.2, None, None], 3),
        ([None, None], 2),
    ],
)
def test_pods_by_their_mean(metrics: Sequence[float | None], wanted: int) -> None:
    assert wanted_by_pods(len(metrics), metrics, TARGET) == wanted


@pytest.mark.parametrize(("current", "total", "wanted"), [(2, 5.6, 8), (4, 3.0, 4), (4, 2.0, 3), (4, 0.0, 0)])
def test_external_metrics_by_their_sum(current: int, total: float, wanted: int) -> None:
    assert wanted_by_sum(current, total, TARGET) == wanted


@pytest.mark.parametrize(("text", "value"), [("700m", 0.7), ("2", 2.0), ("1k", 1000.0), ("0.5", 0.5)])
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def manifest(**behavior: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a manifest
    metric = {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"averageValue": "700m"}}}
    return {"spec": {"minReplicas": 2, "maxReplicas": 50, "metrics": [metric], "behavior": behavior}}


def play(settings: Settings, current: int, wishes: Sequence[int]) -> list[int]:
    """Return the servers after each decision, one every 15 s."""
    scaler, counts = Autoscaler(settings), []
    for number, wish in enumerate(wishes):
        current = scaler.decide(15.0 * number, current, wish)
        counts.append(current)
    return counts


def test_an_increase_is_limited_by_the_servers_at_the_start_of_the_period() -> None:
    settings = Settings.read(manifest(scaleUp={"policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]}))
    assert play(settings, 3, [40] * 6) == [6, 6, 6, 6, 12, 12]


def test_the_largest_policy_limits_an_increase() -> None:
    policies = [
        {"type": "Percent", "value": 100, "periodSeconds": 60},
        {"type": "Pods", "value": 4, "periodSeconds": 60},
    ]
    assert play(Settings.read(manifest(scaleUp={"policies": policies})), 2, [40]) == [6]


def test_a_decrease_waits_for_the_highest_wish_of_the_window_and_goes_in_steps() -> None:
    down = {"stabilizationWindowSeconds": 30, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}
    assert play(Settings.read(manifest(scaleDown=down)), 8, [8, 2, 2, 2, 2, 2, 2]) == [8, 8, 8, 7, 7, 6, 6]


def test_the_limits_of_the_number_of_servers_hold() -> None:
    down = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 50, "periodSeconds": 15}]}
    settings = Settings.read(
        manifest(scaleDown=down, scaleUp={"policies": [{"type": "Pods", "value": 99, "periodSeconds": 15}]})
    )
    assert play(settings, 10, [0, 0, 0, 99]) == [5, 2, 2, 50]


def test_without_a_behavior_the_defaults_apply() -> None:
    settings = Settings.read(manifest())
    assert play(settings, 2, [20, 20]) == [6, 12]
    assert settings.down_window_s == 300


def test_a_policy_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="selectPolicy"):
        Settings.read(manifest(scaleUp={"selectPolicy": "Max"}, scaleDown={"selectPolicy": "Min"}))
