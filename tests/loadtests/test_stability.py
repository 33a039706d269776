from collections.abc import Sequence

import pytest

from tpuserve_loadtests.measurement.measured import is_stable


@pytest.mark.parametrize(
    ("values", "stable"),
    [
        ((500.0, 100.0, 104.0, 109.0), True),
        ((100.0, 104.0, 111.0), False),
        ((100.0, 100.0, 100.0, 89.0), False),
        ((100.0, 100.0), None),
        ((100.0, None, 100.0, 100.0), None),
        ((0.0, 0.0, 0.0), True),
    ],
)
def test_the_last_three_windows_decide(values: Sequence[float | None], stable: bool | None) -> None:
    assert is_stable(values) is stable
