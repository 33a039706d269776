"""Tests for the judgement of earlier ends: pauses of versions and forms, and their bounds."""

import pytest

from tests.support.fake_device import FakeClock
from tpuserve_server.core.models.ends import End, VersionEnds
from tpuserve_server.core.terms.errors import InvalidArgument, Quarantined, ServingError
from tpuserve_server.core.terms.types import ServableId

ID = ServableId("m", 1)
SIGNAL = "signal SIGABRT"


def refused_s(ends: list[End], last_s: float) -> int:
    """Return for how many minutes after `last_s` the version or its form is refused."""
    clock = FakeClock()
    judged = VersionEnds(ID, ends, clock)
    clock.now_s = last_s
    minutes = 0
    while True:
        try:
            judged.check_load()
            judged.check_new_form("form")
        except ServingError:
            minutes += 1
            clock.now_s += 60
        else:
            return minutes


def of_version(*at_s: float) -> list[End]:
    return [End("m", 1, "f", "running", SIGNAL, at) for at in at_s]


def of_form(*at_s: float, is_sure: bool = True) -> list[End]:
    return [End("m", 1, "f", "running", SIGNAL, at, "form", is_sure) for at in at_s]


HOUR = 3600.0


@pytest.mark.parametrize(
    ("ends", "minutes"),
    [
        (of_version(0), 0),
        (of_version(0, HOUR), 5),
        (of_version(0, HOUR + 1), 0),
        (of_version(0, 1, 2), 10),
        (of_version(0, 1, 301 + HOUR), 10),
        (of_version(0, 1, 302 + HOUR), 0),
        (of_version(*range(6)), 60),
        (of_version(*range(1000)), 60),
        (of_form(0), 60),
        (of_form(0, is_sure=False), 0),
        (of_form(0, 1, is_sure=False), 60),
        (of_form(0, HOUR), 240),
        (of_form(0, 10 * HOUR), 60),
        (of_form(0, *[HOUR] * 1000), 24 * 60),
    ],
)
def test_each_end_soon_after_the_pause_doubles_it(ends: list[End], minutes: int) -> None:
    assert refused_s(ends, ends[-1].at_s) == minutes


def test_refusals_name_what_happened_and_when_the_server_tries_again() -> None:
    clock = FakeClock()
    hung = End("m", 1, "f", "running", "hung run", clock.now_s, "signature 's' with x [0]", is_sure=True)
    with pytest.raises(InvalidArgument, match=r"signature 's' with x \[0\]: .* hung\. Send .* until \d{4}-.* UTC"):
        VersionEnds(ID, [hung], clock).check_new_form(hung.form)
    version = VersionEnds(ID, of_version(clock.now_s, clock.now_s), clock)
    with pytest.raises(Quarantined, match=r"ended 2 times .* \(signal SIGABRT\)\. .* again at \d{4}-.* UTC"):
        version.check_load()


def test_status_names_only_some_forms_and_only_while_they_are_refused() -> None:
    clock = FakeClock()
    ends = [End("m", 1, "f", "running", SIGNAL, clock.now_s, f"form {n}", is_sure=True) for n in range(6)]
    effect = "a run ended the server's process (signal SIGABRT)"
    judged = VersionEnds(ID, ends, clock)
    assert judged.describe_refusals() == "; ".join(
        [*(f"refuses form {n}: {effect}" for n in (3, 4, 5)), "refuses 3 more input shapes"]
    )
    clock.advance(HOUR)
    assert judged.describe_refusals() == ""
