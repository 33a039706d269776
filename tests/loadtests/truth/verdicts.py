"""Assertions on rows of the truth table."""

from collections.abc import Iterable

import pytest

from tests.loadtests.truth.row import Row


def assert_true(rows: Iterable[Row]) -> None:
    """Assert that the load tester reported the truth.

    Counts, verdicts and exit codes have no excuse. Wrong figures skip the test, with the reason, if the run itself
    distrusts them or the machine was busy.
    """
    rows = list(rows)
    for row in rows:
        assert row.wrong_counts == (), f"{row.shape}, {row.behaviour}: {row.verdict}"
    for row in rows:
        if row.wrong_figures and row.excuse:
            pytest.skip(f"{row.shape}, {row.behaviour}: {'; '.join(row.wrong_figures)}: {row.excuse}")
        assert row.wrong_figures == (), f"{row.shape}, {row.behaviour}: {row.verdict}"
