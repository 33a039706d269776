"""Tests of lines that Envoy's process writes to stderr."""

import logging
from collections.abc import Iterator

import pytest
from tpuserve_server.hosts.envoy.native_line import log_line


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ("envoy\twarning\tmain\tno limit\\nat all", ("envoy.main", logging.WARNING, "no limit\\nat all")),
        ("envoy\tcritical\tbacktrace\tCaught\ta signal", ("envoy.backtrace", logging.CRITICAL, "Caught\ta signal")),
        ("envoy\todd\tmain\tx", ("envoy.main", logging.WARNING, "x")),
        ("envoy\tshort", ("stderr", logging.WARNING, "envoy\tshort")),
        ("E0000 00:00:17.5 12 a.cc:1] 100% bad", ("stderr", logging.ERROR, "E0000 00:00:17.5 12 a.cc:1] 100% bad")),
        ("I1126 08:15:01.25 12 a.cc:1] fine", ("stderr", logging.INFO, "I1126 08:15:01.25 12 a.cc:1] fine")),
        ("free(): invalid pointer %s", ("stderr", logging.WARNING, "free(): invalid pointer %s")),
    ],
)
def test_a_line_is_an_event(line: str, record: tuple[str, int, str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        log_line(line)
    assert caplog.record_tuples == [record]


@pytest.fixture
def _only_critical() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.CRITICAL)
    yield
    root.setLevel(before)


@pytest.mark.usefixtures("_only_critical")
def test_no_level_suppresses_a_line_of_unknown_origin(caplog: pytest.LogCaptureFixture) -> None:
    for line in ("envoy\terror\tmain\tx", "W1126 08:15:01.25 x", "", "terminate called"):
        log_line(line)
    assert caplog.messages == ["terminate called"]
