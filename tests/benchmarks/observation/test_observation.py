"""Tests for the benchmark of observation: differences, limits, and requests whose spans reach a receiver."""

import io
import itertools

import pytest
from rich.console import Console

from benchmarks.observation.cases import CASES, Case
from benchmarks.observation.observation import measure, table
from tests.support.otlp_receiver import http_receiver


def named(name: str) -> Case:
    return next(each for each in CASES if each.name == name)


def case(name: str, *cpu_us: float, baseline: str = "", limit_us: float | None = None) -> Case:
    values = itertools.cycle(cpu_us)
    return Case(name, lambda _url: next(values), baseline, limit_us)


def test_a_cost_is_the_difference_to_the_baseline_of_the_same_round() -> None:
    cases = [
        case("bare", 1.0, 10.0, 2.0),
        case("cheap", 1.5, 10.5, 2.5, baseline="bare", limit_us=0.5),
        case("dear", 2.0, 11.5, 3.5, baseline="bare", limit_us=1.0),
    ]
    cheap, dear = measure(cases, 3)
    assert (cheap.name, cheap.cpu_us, cheap.limit_us) == ("cheap", 0.5, 0.5)
    assert dear.cpu_us == 1.5
    output = io.StringIO()
    Console(file=output, width=100).print(table([cheap, dear]))
    verdicts = {line.split()[1]: line for line in output.getvalue().splitlines() if "<=" in line}
    assert "reached" in verdicts["cheap"]
    assert "missed" in verdicts["dear"]


def test_every_baseline_is_measured() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {case.baseline for case in CASES if case.baseline} <= set(names)


def test_every_traced_request_reaches_the_receiver() -> None:
    sampled, all_of_them = named("tracing at 1 %"), named("tracing at 100 %")
    for each, least in ((sampled, 500), (all_of_them, 1500)):
        with http_receiver() as receiver:
            assert each.measure(receiver.url) > 0
        assert sum(span.name == "Predict" for span in receiver.spans()) >= least


def test_traces_that_are_not_exported_are_no_result() -> None:
    with http_receiver(status=503) as receiver, pytest.raises(RuntimeError, match="Not every trace was exported"):
        named("tracing at 100 %").measure(receiver.url)


@pytest.mark.parametrize("name", ["access log of errors", "access log of 1 %", "access log of all"])
def test_no_line_of_a_request_is_dropped(name: str) -> None:
    assert named(name).measure("") > 0


def test_pages_of_both_formats_and_the_figures_of_the_console_are_made() -> None:
    for form in ("text page", "OpenMetrics page", "console figures"):
        assert named(f"{form} of 1 signature").measure("") > 0
