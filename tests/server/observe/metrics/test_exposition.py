"""Tests that prometheus_client's parsers read the samples of every kind of family, with labels that need care."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tpuserve_server.observe.metrics.exposition import OPEN_METRICS, PLAIN, TextFormat, parts_of, write_family
from tpuserve_server.observe.metrics.families import Collected, Family
from tpuserve_server.observe.metrics.histogram import Histogram, TracedRequest

TRACED = TracedRequest("ab" * 16, 0.25, 1700000000.1234)


def histogram(bounds: Iterable[float], values: Iterable[float]) -> Histogram:
    made = Histogram(tuple(bounds))
    made.add_all(values)
    return made


def families() -> list[Collected]:
    """Return families of each kind. They can be read once."""
    awkward = (['quo"te', "back\\slash\nline\u2028"], ["", "é"])
    values = (math.inf, -math.inf, 0.1, 2**40, 1e-7)
    seconds = histogram((0.1, 0.2, 0.5), (0.25, 0.5, 1.0))
    exemplars: Mapping[int, TracedRequest] = {2: TRACED}
    return [
        Family("a_things_total", "counter", ("z", "b"), 'Things with a \\ and a "word".\nTwo lines.').valued(
            [(awkward[0], 3), (awkward[1], 1e21)]
        ),
        *(Family(f"b_level_{place}", "gauge", (), "A level.").valued([((), one)]) for place, one in enumerate(values)),
        Family("c_seconds", "histogram", ("m",), "Times.").counted([(["x"], seconds, exemplars)]),
        Family("d_error", "histogram", ("m",), "Errors.").counted([(["y"], histogram((-0.5, 0.5), (-1.0, 0.1)), {})]),
        Family("e_empty", "gauge", ("m",), "None.").valued([]),
    ]


def text_of(collected: Iterable[Collected], form: TextFormat) -> str:
    return "".join(line for each in collected for line in write_family(each, form)) + form.end


def read(form: TextFormat) -> list[tuple[str, dict[str, str], float]]:
    parse: Any = parse_open_metrics if form.is_open else parse_text  # prometheus_client is untyped
    return [
        (sample.name, dict(sample.labels), sample.value)
        for family in parse(text_of(families(), form))
        for sample in family.samples
    ]


def _by_name(sample: tuple[str, dict[str, str], float]) -> str:
    return repr((sample[0], sorted(sample[1].items())))


@pytest.mark.parametrize("form", [PLAIN, OPEN_METRICS], ids=["plain", "open"])
def test_parsers_read_the_samples(form: TextFormat) -> None:
    expected = [(name, labels, float(value)) for each in families() for name, labels, value in each.samples()]
    assert sorted(read(form), key=_by_name) == sorted(expected, key=_by_name)


@pytest.mark.parametrize("form", [PLAIN, OPEN_METRICS], ids=["plain", "open"])
def test_parsers_read_the_kind_and_the_meaning(form: TextFormat) -> None:
    parse: Any = parse_open_metrics if form.is_open else parse_text
    found = {each.name: (each.type, each.documentation) for each in parse(text_of(families(), form))}
    assert found["a_things"] == ("counter", 'Things with a \\ and a "word".\nTwo lines.')
    assert found["c_seconds"] == ("histogram", "Times.")
    assert found["e_empty"] == ("gauge", "None.")


def test_only_open_metrics_has_exemplars() -> None:
    assert 'le="0.5"} 2 # {trace_id="abab' in text_of(families(), OPEN_METRICS)
    assert "trace_id" not in text_of(families(), PLAIN)


@pytest.mark.parametrize(("omit_below", "first"), [(-math.inf, "1.0"), (1.0, "1.0"), (2.5, "3.0"), (math.inf, "3.0")])
def test_a_histogram_begins_below_its_lowest_value_or_at_the_bound_of_its_family(omit_below: float, first: str) -> None:
    family = Family("c_seconds", "histogram", (), "Times.", omit_below=omit_below)
    counts = {"1.0": 0, "2.0": 0, "3.0": 0, "4.0": 2, "5.0": 2, "+Inf": 2}
    shown = [
        (sample.labels["le"], sample.value)
        for sample in family.counted([((), histogram((1, 2, 3, 4, 5), (3.5, 3.6)), {})]).samples()
        if sample.name == "c_seconds_bucket"
    ]
    everything = list(counts.items())
    assert shown == everything[list(counts).index(first) :]


def test_a_histogram_without_a_value_has_no_line() -> None:
    family = Family("c_seconds", "histogram", ("m",), "Times.")
    lines = list(write_family(family.counted([(["x"], histogram((1, 2), ()), {})]), PLAIN))
    assert "".join(lines) == "# HELP c_seconds Times.\n# TYPE c_seconds histogram\n"


def test_a_page_has_parts_between_which_others_run() -> None:
    lines = [f"line {number:04}\n" for number in range(10_000)]
    pauses = []
    parts = list(parts_of(lines, lambda: pauses.append(1)))
    assert b"".join(parts).decode() == "".join(lines)
    assert len(pauses) == len(lines)
    assert {len(part) >> 10 for part in parts[:-1]} == {32}
