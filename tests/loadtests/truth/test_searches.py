"""Tests that sweep and search find the known capacity of a server with slots."""

from pathlib import Path

from tests.loadtests.truth import commands
from tests.loadtests.truth.tester import settle
from tests.loadtests.truth.verdicts import assert_true


def test_the_steps_of_a_sweep_are_true() -> None:
    rows = settle("sweep", commands.sweep)
    assert len(rows) == 3
    assert_true(rows)


def test_a_search_finds_the_capacity(tmp_path: Path) -> None:
    assert_true(settle("search", lambda: commands.search(tmp_path)))
