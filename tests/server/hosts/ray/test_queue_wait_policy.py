"""QueueWaitPolicy as a table."""

from types import SimpleNamespace

import pytest

from tpuserve_server.hosts.ray.queue_wait_policy import QUEUE_WAIT, QueueWaitPolicy


@pytest.mark.parametrize(
    ("current", "waits_s", "is_queued", "wished"),
    [
        (1, {}, False, 1),  # no report yet
        (2, {"a": 0.01, "b": 0.01}, False, 2),
        (2, {"a": 0.005, "b": 0.025}, False, 3),  # the mean is 1.5 times the target
        (2, {"a": 5.0, "b": 5.0}, False, 4),  # at most doubled
        (3, {"a": 0.0, "b": 0.0, "c": 0.0}, False, 2),  # one at a time
        (3, {"a": 0.003, "b": 0.003, "c": 0.003}, False, 3),
        (1, {"a": 0.0}, True, 2),
        (0, {}, True, 1),
    ],
)
def test_it_keeps_the_mean_wait_at_the_target(
    current: int, waits_s: dict[str, float], is_queued: bool, wished: int
) -> None:
    assert QueueWaitPolicy(target_queue_wait_s=0.01).choose(current, waits_s, is_queued) == wished


@pytest.mark.parametrize(("wait_s", "chosen"), [(1.0, 3), (0.0, 2)])
def test_the_limits_of_the_deployment_hold(wait_s: float, chosen: int) -> None:
    context = SimpleNamespace(
        total_queued_requests=None,
        current_num_replicas=2,
        aggregated_metrics={QUEUE_WAIT: {"a": wait_s}},
        capacity_adjusted_min_replicas=2,
        capacity_adjusted_max_replicas=3,
    )
    assert QueueWaitPolicy()(context) == (chosen, {})


@pytest.mark.parametrize("target_s", [0, -1, float("nan")])
def test_a_target_must_be_above_0(target_s: float) -> None:
    with pytest.raises(ValueError, match="target_queue_wait_s must be above 0; was"):
        QueueWaitPolicy(target_s)
