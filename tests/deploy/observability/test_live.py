"""Tests with a real Prometheus that scrapes a real server under load: every name exists, and every query answers."""

from collections.abc import Iterator

import pytest

from tests.deploy.observability.alert_case import alert_rules
from tests.deploy.observability.dashboard_file import PanelQuery, metric_names, panel_queries
from tests.deploy.observability.scraped_server import ScrapedServer, run_scraped_server
from tests.support.optional import needs

pytestmark = [needs("prometheus"), pytest.mark.slow, pytest.mark.xdist_group("prometheus")]

# Metrics without series here, and the reasons.
WITHOUT_SERIES = {
    "tpuserve_dropped_requests_total": "the server has capacity for every request",
    "tpuserve_hung_runs_total": "no run hangs",
    "tpuserve_unwarmed_runs_total": "warm-up runs every shape",
    "tpuserve_request_log_dropped_total": "the disk is fast enough",
    "tpuserve_traces_dropped_total": "the receiver responds, and few requests are traced",
    "tpuserve_device_memory_bytes": "the CPU has no memory of a device",
    "tpuserve_metrics_omitted_series": "the server has few models",
    "tpuserve_certificate_expiry_timestamp_seconds": "the server has no TLS",
    "ALERTS": "no alert fires",
}
# Prefixes of the names that Prometheus and the rules make.
MADE_BY_PROMETHEUS = ("ALERTS", "up", "namespace_job:", "namespace_job_model:", "tpuserve:")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedServer]:
    with run_scraped_server(tmp_path_factory.mktemp("scraped")) as scraped:
        yield scraped


def test_prometheus_scrapes_the_server(scraped: ScrapedServer) -> None:
    assert scraped.prometheus.value('up{job="tpuserve"}') == 1
    assert scraped.prometheus.value("sum(rate(tpuserve_requests_total[10s]))") > 0


def test_every_rule_is_healthy(scraped: ScrapedServer) -> None:
    assert set(scraped.prometheus.rule_health().values()) == {"ok"}


def test_no_alert_fires(scraped: ScrapedServer) -> None:
    assert scraped.prometheus.query('ALERTS{alertstate="firing"}') == []


def test_every_metric_of_panels_and_alerts_exists(scraped: ScrapedServer) -> None:
    exprs = [query.expr for query in panel_queries()] + [rule["expr"] for rule in alert_rules().values()]
    families = scraped.prometheus.families()
    names = {name for name in metric_names(exprs) if not name.startswith(MADE_BY_PROMETHEUS)}
    assert {name for name in names if not _candidates(name) & families} == set()


def test_autoscalers_metric_has_the_demand_of_the_load(scraped: ScrapedServer) -> None:
    assert scraped.prometheus.value("pod:tpuserve_demand_ratio") > 0


def test_exemplar_names_a_trace_that_the_receiver_has(scraped: ScrapedServer) -> None:
    exemplars = scraped.prometheus.exemplars("tpuserve_request_latency_seconds_bucket")
    wanted = {exemplar["labels"]["trace_id"] for exemplar in exemplars}
    assert wanted
    spans = scraped.traces.wait_for(lambda spans: not wanted.isdisjoint(span.trace_id.hex() for span in spans))
    assert any(span.kind == span.SPAN_KIND_SERVER and span.trace_id.hex() in wanted for span in spans)


@pytest.mark.parametrize("query", panel_queries(), ids=str)
def test_panel_shows_data(scraped: ScrapedServer, query: PanelQuery) -> None:
    answer = scraped.prometheus.query(query.expr)
    assert answer or metric_names([query.expr]) & WITHOUT_SERIES.keys(), query.expr


@pytest.mark.parametrize("name", alert_rules())
def test_alert_is_evaluated(scraped: ScrapedServer, name: str) -> None:
    scraped.prometheus.query(alert_rules()[name]["expr"])


@pytest.mark.parametrize("name", WITHOUT_SERIES)
def test_metric_without_series_has_none(scraped: ScrapedServer, name: str) -> None:
    assert scraped.prometheus.query(name) == [], "shorten WITHOUT_SERIES"


def _candidates(name: str) -> set[str]:
    """Return the names that the family of a series may have: OpenMetrics omits `_total`."""
    suffixes = ("_bucket", "_sum", "_count", "_total")
    return {name, *(name.removesuffix(suffix) for suffix in suffixes)}
