"""Tests that OpenMetrics pages are valid by the reference parser and by Prometheus' own."""

import math
import re
import subprocess
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.measured import ID, finish, page_of, run_batch, upstream_page
from tests.support.optional import needs
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import State
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def measured(model: str = "m") -> PrometheusMetrics:
    """Return metrics with every kind of series."""
    metrics = PrometheusMetrics()
    finish(metrics, model=model)
    run_batch(metrics)
    metrics.finish_predicted(servable=ID, signature="s", errors_s=[-0.004, 0.001], host_s=0.0025)
    metrics.examples_received(model="m", count=1)
    metrics.version_warmed(servable=ID, path=Path("/models/m/3"), records=1, duration_s=0.1)
    metrics.request_logged(model="m", outcome="written")
    metrics.version_changed(servable=ID, state=State.AVAILABLE)
    metrics.protocol_served(protocol="grpc", in_flight=lambda: 2)
    metrics.stages_sampled(protocol="grpc", model="m", stages=[("decode", 0.25)], requests=31)
    return metrics


def finish_traced(metrics: PrometheusMetrics, latency_s: float, trace_id: str) -> None:
    metrics.request_finished(
        model="m",
        version=3,
        signature="s",
        method="Predict",
        protocol="grpc",
        code=Code.OK,
        latency_s=latency_s,
        trace_id=trace_id,
    )


def samples(metrics: PrometheusMetrics) -> list[Sample]:
    parts, content_type = metrics.render_open_metrics()
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = list(text_string_to_metric_families(b"".join(parts).decode()))  # type: ignore[no-untyped-call]  # untyped library
    assert len(families) == len({family.name for family in families})
    return [sample for family in families for sample in family.samples]


def exemplars(metrics: PrometheusMetrics) -> dict[str, tuple[str, float]]:
    return {
        sample.labels["le"]: (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for sample in samples(metrics)
        if sample.exemplar is not None and sample.name == "tpuserve_request_latency_seconds_bucket"
    }


def test_a_page_has_all_names_and_one_end() -> None:
    metrics = measured(model='a"b\\c\nd\u2028e')
    found = samples(metrics)
    names = {sample.name for sample in found}
    text = page_of(metrics)
    assert names == set(re.findall(r"^([:\w]+)[{ ]", text, re.MULTILINE))
    assert ":tensorflow:serving:request_count" in names
    assert {sample.labels["model_name"] for sample in found if sample.name == ":tensorflow:serving:request_count"} == {
        'a"b\\c\nd\u2028e'
    }
    assert page_of(metrics, is_open=True).count("# EOF") == 1


@needs("promtool")
def test_prometheus_itself_reads_every_sample(tmp_path: Path) -> None:
    page = page_of(measured(), is_open=True)
    # This command of promtool takes samples with times only.
    timed = re.sub(r"^([^#].*)$", r"\1 1700000000", page, flags=re.MULTILINE)
    (tmp_path / "page").write_text(timed)
    files = [str(tmp_path / "page"), str(tmp_path / "blocks")]
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", *files]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    *_, block = run.stdout.splitlines()
    assert f" {len(samples(measured()))} " in re.sub(r"\s+", " ", block)


@needs("promtool")
def test_prometheus_finds_no_fault_in_this_servers_names() -> None:
    page = page_of(measured()).encode()
    run = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False, timeout=60)
    faults = (run.stderr + run.stdout).decode().splitlines()
    # Upstream's names are what they are.
    assert [fault for fault in faults if not fault.startswith(":tensorflow:")] == []


def test_a_bucket_keeps_the_last_traced_request() -> None:
    metrics = PrometheusMetrics()
    finish(metrics, latency_s=0.02)
    assert exemplars(metrics) == {}
    finish_traced(metrics, 0.015, "1" * 32)
    finish_traced(metrics, 0.016, TRACE_ID)
    finish_traced(metrics, 30.0, "2" * 32)
    finish_traced(metrics, 0.00005, "3" * 32)
    assert exemplars(metrics) == {
        "0.02": (TRACE_ID, 0.016),
        "+Inf": ("2" * 32, 30.0),
        "0.0001": ("3" * 32, 0.00005),
    }
    assert "trace_id" not in page_of(metrics)


def test_exemplars_end_with_their_version() -> None:
    metrics = PrometheusMetrics()
    finish_traced(metrics, 0.015, TRACE_ID)
    metrics.version_changed(servable=ID, state=State.END)
    finish(metrics)
    assert exemplars(metrics) == {}


def test_counters_without_total_become_unknown_and_bounds_get_a_fraction() -> None:
    metrics = measured()
    finish(metrics, latency_s=5e-6)
    page = upstream_page(metrics, is_open=True)
    assert "# TYPE :tensorflow:serving:request_count unknown\n" in page
    assert "# TYPE :tensorflow:serving:request_example_count counter\n" in page
    labels = 'model_name="m",API="Predict",entrypoint="GRPC"'
    assert f':tensorflow:serving:request_latency_bucket{{{labels},le="10.0"}} 1\n' in page
    assert f':tensorflow:serving:request_latency_bucket{{{labels},le="1102.0"}} 2\n' in page
    bounds = [sample.labels["le"] for sample in samples(measured()) if "le" in sample.labels]
    assert all(math.isinf(float(bound)) or "." in bound or "e" in bound for bound in bounds)
