"""`python -m tests.docs.metric_table`: rewrite the rows of docs/reference/metrics.md from the server's declarations."""

import re

from prometheus_client import Metric

from tests.deploy.dockerfile import ROOT
from tpuserve_server.metrics.prometheus import PrometheusMetrics

PAGE = ROOT / "docs/reference/metrics.md"
_ROW = re.compile(r"^\| `(tpuserve_\w+)` \|.*$", re.MULTILINE)


def exposed_name(metric: Metric) -> str:
    """Return the name on the metrics page."""
    return metric.name + ("_total" if metric.type == "counter" else "")


def metric_rows() -> dict[str, str]:
    """Return the row of each of the server's own metrics, by name."""
    metrics = PrometheusMetrics().registry.collect()
    return {exposed_name(metric): _row(metric) for metric in metrics if metric.name.startswith("tpuserve_")}


def write_rows(page: str) -> str:
    """Return the page with each metric's row rewritten. Raises KeyError for a row of an unknown metric."""
    rows = metric_rows()
    return _ROW.sub(lambda row: rows[row[1]], page)


def _row(metric: Metric) -> str:
    # A family without series shows its labels nowhere else.
    labels = ", ".join(getattr(metric, "_labelnames", ()))
    return f"| `{exposed_name(metric)}` | {metric.type} | {labels} | {metric.documentation} |"


if __name__ == "__main__":
    PAGE.write_text(write_rows(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
