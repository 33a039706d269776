import pytest

from tpuserve_loadtests.rendering.scales import (
    Linear,
    Logarithmic,
    Nines,
    latency_scale,
    milliseconds,
    seconds,
    three_digits,
)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([3, 97], ["0", "20", "40", "60", "80", "100"]),
        ([0.2, 0.9], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([4_100], ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        ([0], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_ticks_are_round_and_few(values: list[float], ticks: list[str]) -> None:
    scale = Linear.around(values)
    assert [text for _, text in scale.ticks()] == ticks
    assert all(0 <= scale.place(value) <= 1 for value in values)


def test_ratios_do_not_begin_at_zero() -> None:
    scale = Linear.around([0.93, 1.08], zero=False)
    assert [text for _, text in scale.ticks()] == ["0.90", "0.95", "1.00", "1.05", "1.10"]


@pytest.mark.parametrize("high", [30, 300, 3e4, 3e7, 3e12])
def test_a_logarithmic_axis_names_a_few_values_within_it(high: float) -> None:
    scale = Logarithmic.around([2, high])
    places = [scale.place(value) for value, _ in scale.ticks()]
    assert 2 <= len(places) <= 6
    assert all(0 <= place <= 1 for place in places)
    assert scale.place(2 * scale.low) - scale.place(scale.low) == pytest.approx(scale.place(8) - scale.place(4))


def test_each_nine_is_as_wide_as_the_last_one() -> None:
    scale = Nines(10_000)
    places = {text: scale.place(value) for value, text in scale.ticks()}
    assert places == pytest.approx({"0 %": 0, "90 %": 0.25, "99 %": 0.5, "99.9 %": 0.75, "99.99 %": 1})
    assert scale.place(1) == 1


@pytest.mark.parametrize(("values", "kind"), [([1, 19], Linear), ([1, 21], Logarithmic), ([0, 0], Linear)])
def test_latencies_far_apart_get_a_logarithmic_axis(values: list[float], kind: type) -> None:
    assert isinstance(latency_scale(values), kind)


def test_numbers_have_three_digits_that_matter() -> None:
    assert [three_digits(value) for value in (0, 0.4123, 3.5, 47.13, 1234.5)] == ["0", "0.412", "3.50", "47.1", "1,234"]
    assert milliseconds(None) == "no responses"
    assert [seconds(value) for value in (10, 119, 120, 9000)] == ["10 s", "119 s", "2 min", "2.5 h"]
