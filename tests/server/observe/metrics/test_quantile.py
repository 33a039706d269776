"""Tests for quantiles of a histogram."""

import numpy as np
import pytest

from tpuserve_server.observe.metrics.live_measurements import quantile

BOUNDS = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("cumulative", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 4, 4, 4], 0.5, 0.5),
        ([2, 4, 4, 4], 0.5, 1.0),
        ([2, 4, 4, 4], 0.75, 1.5),
        ([0, 0, 10, 10], 0.9, 3.8),
        ([0, 0, 0, 3], 0.5, 4.0),
        ([1, 1, 1, 2], 0.99, 4.0),
    ],
)
def test_values_are_spread_within_a_bucket(cumulative: list[int], share: float, expected: float | None) -> None:
    assert quantile(BOUNDS, np.array(cumulative), share) == (None if expected is None else pytest.approx(expected))
