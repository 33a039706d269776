"""Tests that the measurements of several processes, added up, are those of one process that measured everything."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fakes import FakeClock
from tests.support.measured import finish
from tpuserve_server.core.budgets.budgets import Budgets
from tpuserve_server.core.budgets.options import BudgetOptions
from tpuserve_server.core.build import Build
from tpuserve_server.core.errors import Code, InvalidArgument
from tpuserve_server.core.process_usage import ProcessUsage, process_usage
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.types import ServableId, State
from tpuserve_server.metrics.live_measurements import LiveMeasurements
from tpuserve_server.metrics.measurements import Measurements, Share
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.metrics.request_measurements import RequestKey
from tpuserve_server.metrics.server_measurements import ServerParts
from tpuserve_server.metrics.version_statistics import version_statistics

ENGINE, MOST_FRONT_ENDS = 0, 3
VERSIONS = (ServableId("a", 1), ServableId("a", 2), ServableId("b", 1))


class Step(NamedTuple):
    """A measurement, given the measurements of its process and the number of the step, which identifies a trace."""

    measure: Callable[[Measurements, int], None]
    servable: ServableId | None = None


def carried(share: Share) -> Share:
    """Return a share as it arrives in another process."""
    arrived: Share = pickle.loads(pickle.dumps(share))
    return arrived


# Multiples of a power of two: their sums are exact, whatever the order of the additions.
seconds = st.integers(0, 1 << 22).map(lambda number: number / (1 << 20))


@st.composite
def answers(draw: st.DrawFn) -> Step:
    """Return the end of a request, whose version may be unknown."""
    servable = draw(st.sampled_from((None, *VERSIONS)))
    model, version = ("", None) if servable is None else (servable.name, servable.version)
    code, protocol = draw(st.sampled_from(((Code.OK, "grpc"), (Code.OK, "rest"), (Code.NOT_FOUND, "rest"))))
    # Two of them are in one bucket, where the last exemplar stays.
    latency_s, is_traced = draw(st.sampled_from((0.25, 0.375, 3.0))), draw(st.booleans())

    def measure(metrics: Measurements, number: int) -> None:
        trace = f"{number:032x}" if is_traced else ""
        key = {"model": model, "signature": "s", "method": "Predict", "protocol": protocol}
        if version is not None and code is Code.OK:
            metrics.answers_of(version=version, **key)(latency_s, trace)
        else:
            metrics.request_finished(version=version, code=code, latency_s=latency_s, trace_id=trace, **key)

    return Step(measure, servable)


def counted(measure: Callable[[int, float], Callable[[Measurements, int], None]]) -> st.SearchStrategy[Step]:
    return st.builds(lambda count, duration_s: Step(measure(count, duration_s)), st.integers(1, 200), seconds)


COUNTED = st.one_of(
    counted(lambda n, s: lambda m, _: m.stages_sampled(
        protocol="rest", model="a", stages=(("decode", s), ("queue", s / 2)), requests=n
    )),
    counted(lambda n, s: lambda m, _: m.examples_received(model="a", count=n)),
    counted(lambda n, s: lambda m, _: m.requests_refused(by="envoy", count=n)),
    counted(lambda n, s: lambda m, _: m.requests_traced(outcome="rate", count=n)),
    counted(lambda n, s: lambda m, _: m.requests_traced(outcome="exported", count=n)),
)  # fmt: skip
# Requests and shares are the most frequent, so that most series get values in several shares.
KINDS = (*(answers(),) * 6, *(COUNTED,) * 2, st.sampled_from(VERSIONS), *(st.just("share"),) * 3)
STEPS = st.sampled_from(range(len(KINDS))).flatmap(KINDS.__getitem__)


def pages(metrics: PrometheusMetrics) -> tuple[list[str], list[str]]:
    """Return the lines of both formats, without figures of the process and without the times of exemplars."""
    text, open_metrics = metrics.render()[0].decode(), metrics.render_open_metrics()[0].decode()
    return sorted(_lines(text)), sorted(_lines(re.sub(r"(# \{.*\} \S+) \S+$", r"\1", open_metrics, flags=re.MULTILINE)))


def _lines(page: str) -> list[str]:
    # A series of a process appears when it is first counted, so their order differs.
    return [line for line in page.split("\n") if not re.match(r"(# (HELP|TYPE) )?process_", line)]


class Fleet:
    """An engine and front-ends, and one process that measures all that they measure."""

    def __init__(self) -> None:
        self.one = PrometheusMetrics()
        self.processes = [PrometheusMetrics() for _ in range(1 + MOST_FRONT_ENDS)]
        self.ended: set[ServableId] = set()
        for metrics in (self.one, *self.processes):
            for servable in VERSIONS:
                metrics.version_changed(servable=servable, state=State.AVAILABLE)

    def measure(self, process: int, step: Step, number: int) -> None:
        # A version ends after its last request.
        if step.servable not in self.ended:
            step.measure(self.one, number)
            step.measure(self.processes[process], number)

    def end(self, servable: ServableId, process: int) -> None:
        """End a version everywhere, except in one front-end, which has not heard of it yet."""
        self.ended.add(servable)
        for metrics in (self.one, *(each for at, each in enumerate(self.processes) if at in (ENGINE, process))):
            metrics.version_changed(servable=servable, state=State.END)

    def share(self, process: int) -> None:
        if process != ENGINE:
            self.processes[ENGINE].add(carried(self.processes[process].take()), process)


# To shrink a failure takes minutes.
@settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.tuples(st.integers(0, MOST_FRONT_ENDS), STEPS), min_size=20, max_size=60))
def test_any_split_over_processes_gives_the_page_of_one_process(
    steps: list[tuple[int, Step | ServableId | Literal["share"]]],
) -> None:
    fleet = Fleet()
    for number, (process, step) in enumerate(steps):
        if isinstance(step, ServableId):
            fleet.end(step, process)
        elif isinstance(step, Step):
            fleet.measure(process, step, number)
        else:
            fleet.share(process)
    for process in range(1, 1 + MOST_FRONT_ENDS):
        fleet.share(process)
        fleet.processes[ENGINE].end_source(process)
    assert pages(fleet.processes[ENGINE]) == pages(fleet.one)
    for servable in VERSIONS:
        assert version_statistics(fleet.processes[ENGINE], servable) == version_statistics(fleet.one, servable)


def test_a_share_that_arrives_after_the_end_of_a_version_revives_no_series() -> None:
    engine, front_end = PrometheusMetrics(), PrometheusMetrics()
    for metrics in (engine, front_end):
        metrics.version_changed(servable=ServableId("m", 3), state=State.AVAILABLE)
    key = RequestKey("m", 3, "s", "Predict", "grpc", Code.OK)
    front_end.request_finished(**key._asdict(), latency_s=1.0, trace_id="ab" * 16)
    engine.version_changed(servable=ServableId("m", 3), state=State.END)
    engine.add(carried(front_end.take()), 1)
    assert engine.exemplars(key) == {}
    text = engine.render()[0].decode()
    assert "tpuserve_requests_total{" not in text
    assert ':tensorflow:serving:request_count{model_name="m",status="OK"} 1\n' in text


def test_a_share_has_only_what_is_new() -> None:
    front_end = PrometheusMetrics()
    finish(front_end)
    assert [tally.number for _, tally in front_end.take().requests.requests] == [1]
    assert not any(front_end.take().requests)
    finish(front_end)
    assert [tally.number for _, tally in front_end.take().requests.requests] == [1]


class Process:
    """The measurements of one process, with its budgets and its log."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.metrics = PrometheusMetrics()
        self.budgets = Budgets.of(BudgetOptions(), 100, clock)
        self.dropped = 0
        service = InferenceService(ModelRegistry([], self.metrics), clock)
        build = Build("1.2.3", "3.13.1", "envoy")
        parts = ServerParts(service, self.budgets, build, lambda: self.dropped, lambda: None)
        self.metrics.server.server_built(parts)

    def sample(self, name: str, *labels: str) -> float:
        text = self.metrics.render()[0].decode()
        [value] = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and tuple(sample.labels.values()) == labels
        ]
        return value


def test_budgets_and_dropped_events_are_those_of_all_processes() -> None:
    engine, front_end = Process(), Process()
    limit = engine.sample("tpuserve_budget_bytes", "receiving", "limit")
    front_end.dropped = 3
    with front_end.budgets.receiving.begin() as upload:
        upload.hold(90)
        front_end.budgets.sending.cuts["timeout"] += 4
        for budget in (engine.budgets.decoded, front_end.budgets.decoded):
            with pytest.raises(InvalidArgument):
                budget.check(401, "strings")
        for _ in range(2):
            engine.metrics.add(carried(front_end.metrics.take()), 1)
        assert engine.sample("tpuserve_budget_bytes", "receiving", "in_use") == 90
        assert engine.sample("tpuserve_budget_bytes", "receiving", "limit") == 2 * limit
        assert engine.sample("tpuserve_budget_refusals_total", "decoded") == 2
    engine.metrics.end_source(1)
    assert engine.sample("tpuserve_budget_bytes", "receiving", "in_use") == 0
    assert engine.sample("tpuserve_budget_refusals_total", "decoded") == 2
    assert engine.sample("tpuserve_log_events_dropped_total") == 3
    assert engine.sample("tpuserve_cut_responses_total", "timeout") == 4


def test_requests_in_flight_are_those_of_the_processes_that_live() -> None:
    engine, front_ends = PrometheusMetrics(), (PrometheusMetrics(), PrometheusMetrics())
    engine.protocol_served(protocol="grpc", in_flight=lambda: 1)
    for source, front_end in enumerate(front_ends, 1):
        front_end.protocol_served(protocol="grpc", in_flight=lambda: 10)
        engine.add(carried(front_end.take()), source)
    assert engine.server.in_flight() == {"grpc": 21}
    engine.end_source(1)
    assert engine.server.in_flight() == {"grpc": 11}
    engine.end_source(1)


def used(front_end: PrometheusMetrics, usage: ProcessUsage) -> Share:
    share = front_end.take()
    return share._replace(server=share.server._replace(usage=usage))


def test_the_process_is_the_sum_of_all_processes_and_its_cpu_time_never_falls() -> None:
    engine, front_end, own = Process(), PrometheusMetrics(), process_usage()
    engine.metrics.add(used(front_end, ProcessUsage(1000.0, 1 << 40, 1 << 50, 1, 2)), 1)
    engine.metrics.add(used(front_end, ProcessUsage(2000.0, 1 << 40, 1 << 50, 1, 1000)), 2)
    assert engine.sample("process_cpu_seconds_total") >= 3000 + own.cpu_s - 0.02
    assert engine.sample("process_resident_memory_bytes") > 2 << 40
    assert engine.sample("process_virtual_memory_bytes") > 2 << 50
    # The process that is closest to its limit.
    assert engine.sample("process_open_fds") == 1
    assert engine.sample("process_max_fds") == 2
    figures = LiveMeasurements(engine.metrics, FakeClock()).open_window().take()
    assert figures.resident_bytes is not None
    assert figures.resident_bytes > 2 << 40
    for source in (1, 2):
        engine.metrics.end_source(source)
    assert engine.sample("process_cpu_seconds_total") >= 3000 + own.cpu_s - 0.02
    assert engine.sample("process_resident_memory_bytes") < 1 << 40
    assert engine.sample("process_open_fds") > 2


def test_the_usage_of_this_process_is_that_of_the_system() -> None:
    usage = process_usage()
    assert usage.cpu_s > 0
    assert usage.virtual_bytes >= usage.resident_bytes > 10e6
    with Path(os.devnull).open():
        assert process_usage().open_descriptors == usage.open_descriptors + 1
