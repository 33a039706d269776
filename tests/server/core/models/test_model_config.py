"""Tests for version policies, which choose among the existing versions."""

import pytest

from tpuserve_server.core.models.model_config import ModelConfig, VersionPolicy


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy.latest(), [9]),
        (VersionPolicy.latest(0), [9]),
        (VersionPolicy.latest(2), [9, 3]),
        (VersionPolicy.latest(99), [9, 3, 1, -4]),
        (VersionPolicy.all(), [9, 3, 1, -4]),
        (VersionPolicy.specific([3, 7, -4]), [3, -4]),
        (VersionPolicy.specific([]), []),
    ],
)
def test_policy_chooses_highest_first(policy: VersionPolicy, chosen: list[int]) -> None:
    assert policy.choose([3, 9, -4, 1]) == chosen


def test_policy_names_versions_that_are_absent() -> None:
    assert VersionPolicy.specific([7, 3, 5]).absent([3]) == [5, 7]
    assert VersionPolicy.latest(3).absent([]) == []


def test_equal_configs_are_equal_whatever_the_order_of_versions() -> None:
    def config(*versions: int) -> ModelConfig:
        return ModelConfig("m", "/m", version_policy=VersionPolicy.specific(versions), version_labels={"stable": 1})

    assert config(1, 2) == config(2, 1)
    assert config(1) != config(2)
