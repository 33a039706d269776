"""Tests for the comparison of the metrics that the exports of two versions measured."""

from dataclasses import replace

import pytest

from tpuserve_loadtests.rollout.evaluations import ComparedMetric, Evaluation, MeasuredValue, compare_evaluations

LIVE = MeasuredValue(0.9, ">=", "a.npz", "ab", 40)
KEY = ("accuracy", "s", "y")


@pytest.mark.parametrize(
    ("live", "new", "verdict"),
    [
        (LIVE, replace(LIVE, value=0.95), "better"),
        (LIVE, replace(LIVE, value=0.85, operator=">"), "worse"),
        (LIVE, replace(LIVE, file="renamed.npz"), "equal"),
        (replace(LIVE, operator="<="), replace(LIVE, operator="<", value=0.95), "worse"),
        (replace(LIVE, operator="<="), replace(LIVE, operator="<=", value=0.85), "better"),
        (LIVE, replace(LIVE, operator="<="), "not comparable: bounds of other directions"),
        (LIVE, replace(LIVE, value=1.0, sha256="cd"), "not comparable: other labelled rows"),
        (LIVE, replace(LIVE, value=None), "not comparable: not finite"),
        (None, LIVE, "the live version has no figure"),
        (LIVE, None, "the new version has no figure"),
    ],
)
def test_figures_compare_only_on_the_same_rows(
    live: MeasuredValue | None, new: MeasuredValue | None, verdict: str
) -> None:
    before, after = (None if one is None else Evaluation({KEY: one}) for one in (live, new))
    assert list(compare_evaluations(before, after)) == [ComparedMetric("accuracy", "s/y", live, new)]
    assert ComparedMetric("accuracy", "s/y", live, new).verdict == verdict


def test_every_metric_of_either_version_is_listed() -> None:
    other = ("mae", "s", "price")
    found = list(compare_evaluations(Evaluation({KEY: LIVE}), Evaluation({other: replace(LIVE, value=1, rows=2000)})))
    assert [str(one) for one in found] == [
        "mae of s/price: none to 1, the live version has no figure (2,000 rows of a.npz)",
        "accuracy of s/y: 0.9 to none, the new version has no figure (40 rows of a.npz)",
    ]
    assert list(compare_evaluations(None, None)) == []
