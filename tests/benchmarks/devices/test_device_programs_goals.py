"""Tests for the goals of the device programs."""

from benchmarks.devices.device_program_models import MLP, RESNET, Size
from benchmarks.devices.device_programs import Measured, Rates, Start, judge


def measured(size: Size, served: float = 98.0, *, imports_tensorflow: bool = False) -> Measured:
    cold = [Start(seconds, 700.0, imports_tensorflow=False) for seconds in (10.0, 12.0, 90.0)]
    warm = [Start(seconds, rss, imports_tensorflow=imports_tensorflow) for seconds, rss in ((5.0, 500.0), (3.0, 590.0))]
    return Measured(size, Rates([served, 1.0, 200.0], [100.0, 100.0], 5.0), cold, warm)


def test_medians_decide_of_rates_and_starts() -> None:
    goals = {goal.what: (goal.got, goal.reached) for goal in judge([measured(RESNET)])}
    assert goals == {
        "ResNet-50: served rate relative to the loop": ("0.980", True),
        "ResNet-50: warm start relative to cold start": ("0.33", True),
        "ResNet-50: TensorFlow imported by the server": ("no", True),
    }


def test_what_is_missed_is_said() -> None:
    goals = judge([measured(MLP, 90.0, imports_tensorflow=True)])
    assert [(goal.got, goal.reached) for goal in goals] == [("0.900", False), ("590 MB", True), ("yes", False)]
