"""DemandPolicy as a table."""

from types import SimpleNamespace

import pytest

from tpuserve_server.hosts.ray.demand_policy import DEMAND, DemandPolicy


@pytest.mark.parametrize(
    ("current", "demands", "is_queued", "wished"),
    [
        (1, {}, False, 1),  # no report yet
        (2, {"a": 0.7, "b": 0.7}, False, 2),
        (2, {"a": 0.76, "b": 0.76}, False, 2),  # within the tolerance
        (2, {"a": 2.8, "b": 2.8}, False, 8),  # most requests are refused
        (4, {"a": 2.8, "b": 2.8}, False, 8),  # two replicas start
        (3, {"a": 0.2, "b": 0.2, "c": 0.2}, False, 1),
        (3, {"a": 0.0, "b": 0.0, "c": 0.0}, False, 0),
        (2, {"a": 0.1, "b": 0.1}, True, 3),
        (0, {}, True, 1),
        (0, {"ended": 0.7}, False, 0),
    ],
)
def test_it_keeps_the_demand_at_the_target(
    current: int, demands: dict[str, float], is_queued: bool, wished: int
) -> None:
    assert DemandPolicy(target_demand=0.7).choose(current, demands, is_queued) == wished


@pytest.mark.parametrize(("demand", "chosen"), [(4.0, 3), (0.0, 2)])
def test_the_limits_of_the_deployment_hold(demand: float, chosen: int) -> None:
    context = SimpleNamespace(
        total_queued_requests=None,
        current_num_replicas=2,
        aggregated_metrics={DEMAND: {"a": demand}},
        capacity_adjusted_min_replicas=2,
        capacity_adjusted_max_replicas=3,
    )
    assert DemandPolicy()(context) == (chosen, {})


@pytest.mark.parametrize("target", [0, -1, float("nan")])
def test_a_target_must_be_above_0(target: float) -> None:
    with pytest.raises(ValueError, match="target_demand must be above 0; was"):
        DemandPolicy(target)
