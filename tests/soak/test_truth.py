"""Tests for the versions that may answer a request at a time."""

from tests.soak.truth import Truth


def test_both_versions_may_answer_during_a_change_and_only_the_new_one_after_it() -> None:
    truth = Truth()
    truth.begin(1, 0, "m")
    assert truth.versions(1, 2, "m") == {1}
    truth.begin(2, 10, "m")
    # A request that began before the change may get either version, too.
    assert truth.versions(9, 10, "m") == truth.versions(11, 12, "m") == {1, 2}
    truth.finish(2, 20, "m")
    assert truth.versions(19, 21, "m") == {1, 2}
    assert truth.versions(21, 22, "m") == {2}
    assert truth.versions(5, 6, "m") == {1}


def test_a_version_that_returns_may_answer_again() -> None:
    truth = Truth()
    for version, at_s in ((1, 0), (2, 10), (1, 20)):
        truth.begin(version, at_s, "m")
        truth.finish(version, at_s + 1, "m")
    assert truth.versions(12, 13, "m") == {2}
    assert truth.versions(22, 23, "m") == {1}


def test_labels_have_versions_of_their_own() -> None:
    truth = Truth()
    truth.begin(1, 0, "m", "stable")
    assert truth.versions(1, 2, "m", "stable") == {1}
    assert truth.versions(1, 2, "m", "canary") == truth.versions(1, 2, "m") == set()
