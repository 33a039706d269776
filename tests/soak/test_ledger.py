"""Tests for the judgement of outcomes: wrong, lost, explained by a fault, or without a cause."""

import re

import pytest

from tests.soak.ledger import Ledger, Sent
from tests.soak.outcome import Kind, Outcome
from tests.soak.windows import Windows

UNAVAILABLE = Outcome(Kind.ERROR, "UNAVAILABLE")
TOO_LATE = Outcome(Kind.ERROR, "DEADLINE_EXCEEDED")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Windows())


def sent(from_s: float, until_s: float, *, model: str = "m", is_short: bool = False) -> Sent:
    return Sent("TF REST", "predict", model, from_s, until_s, is_short)


def test_answers_are_counted_by_protocol(ledger: Ledger) -> None:
    ledger.record(sent(0, 1), Outcome(Kind.ANSWERED))
    assert (ledger.requests["TF REST"], ledger.answered["TF REST"], ledger.is_clean) == (1, 1, True)


def test_a_request_without_an_answer_or_an_error_is_lost(ledger: Ledger) -> None:
    for kind in (Kind.ENDED, Kind.LATE):
        ledger.record(sent(0, 1), Outcome(kind, detail="why"))
    assert (ledger.lost, ledger.unexplained, ledger.is_clean) == (2, 0, False)
    assert re.fullmatch(
        r"TF REST predict m, ended \d\d:\d\d:\d\d after 1\.00 s: connection ended: why", ledger.failures[0]
    )


def test_an_error_needs_a_fault_that_explains_it_at_that_time(ledger: Ledger) -> None:
    window = ledger.windows.open("killed", 10, lambda model, outcome: model == "m" and outcome.code == "UNAVAILABLE")
    window.until_s = 20
    for explained in (sent(9, 10), sent(12, 13), sent(20, 25)):
        ledger.record(explained, UNAVAILABLE)
    assert ledger.explained["killed", "UNAVAILABLE"] == 3
    assert ledger.is_clean
    for unexplained in (sent(8, 9), sent(21, 22), sent(12, 13, model="other")):
        ledger.record(unexplained, UNAVAILABLE)
    ledger.record(sent(12, 13), TOO_LATE)
    ledger.record(sent(12, 13), Outcome(Kind.ENDED))
    assert (ledger.unexplained, ledger.lost) == (4, 1)


def test_no_fault_explains_a_wrong_answer(ledger: Ledger) -> None:
    ledger.windows.open("all", 0, lambda _model, _outcome: True)
    ledger.record(sent(1, 2), Outcome(Kind.WRONG))
    assert (ledger.wrong, ledger.is_clean) == (1, False)


def test_a_short_deadline_explains_its_own_error_alone(ledger: Ledger) -> None:
    ledger.record(sent(0, 1, is_short=True), TOO_LATE)
    assert ledger.is_clean
    ledger.record(sent(0, 1, is_short=True), UNAVAILABLE)
    ledger.record(sent(0, 1), TOO_LATE)
    assert ledger.unexplained == 2
