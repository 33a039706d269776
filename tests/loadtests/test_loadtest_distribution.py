import numpy as np
import pytest

from tpuserve_loadtests.requests.distribution import Distribution


def drawn(text: str, count: int = 10_000) -> np.ndarray:
    return Distribution.parse(text).draw(count, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("8", {8: 1.0}),
        ("1:0.7, 8:0.3", {1: 0.7, 8: 0.3}),
        ("8:3,1:7", {1: 0.7, 8: 0.3}),
        ("1:1,2:0", {1: 1.0}),
        ("1..4", {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}),
        # Poisson with mean 1, without zeros: 1/(e-1), a half and a sixth of that.
        ("poisson(1)", {1: 0.582, 2: 0.291, 3: 0.097}),
    ],
)
def test_values_are_drawn_in_their_shares(text: str, shares: dict[int, float]) -> None:
    values = drawn(text)
    for value, share in shares.items():
        assert np.mean(values == value) == pytest.approx(share, abs=1e-3)


def test_they_come_in_random_order_and_the_same_every_time() -> None:
    values = drawn("1..4")
    np.testing.assert_array_equal(values, drawn("1..4"))
    assert abs(np.mean(values[:5000]) - np.mean(values[5000:])) < 0.1


def test_lengths_of_texts_are_around_their_median() -> None:
    values = drawn("lognormal(64,0.5)")
    assert np.median(values) == pytest.approx(64, abs=1)
    assert np.std(np.log(values)) == pytest.approx(0.5, rel=0.02)


def test_the_mean_is_that_of_what_is_drawn() -> None:
    for text in ("8", "1:0.7,8:0.3", "1..16", "poisson(4)", "lognormal(64,0.5)"):
        assert Distribution.parse(text).mean == pytest.approx(np.mean(drawn(text)), rel=0.01)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a number or a distribution"),
        ("many", "not a number or a distribution"),
        ("-1", "not a number or a distribution"),
        ("0", "ranges from 0 to 0"),
        ("0..3", "ranges from 0 to 3"),
        ("5..4", "has no valid values"),
        ("1:0", "has no valid values"),
        ("1..99999999999", "must be from 1 to 1,000,000"),
        ("2000000", "must be from 1 to 1,000,000"),
        ("poisson(0)", "has no valid values"),
        ("poisson(1e9)", "not a number or a distribution"),
        ("poisson(999999999)", "has no valid values"),
        ("lognormal(0,1)", "has no valid values"),
        ("lognormal(500000,2)", "must be from 1 to 1,000,000"),
    ],
)
def test_what_is_no_distribution_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Distribution.parse(text)
