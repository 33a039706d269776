import pytest

from tpuserve_loadtests.arrivals.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("2m", 120), ("1h30m", 5400), ("0.5", 0.5), ("90", 90), ("250ms", 0.25), (" 1M ", 60), ("1.5s", 1.5)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "ten", "10 s", "-1", "1d", "1s2", "nan", "0", "0s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_duration(text)
