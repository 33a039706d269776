"""Tests that Prometheus finds the same quantiles with and without the buckets that the page omits."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.measured import finish
from tests.support.optional import needs
from tpuserve_server.observe.metrics.catalogue import REQUEST_LATENCY
from tpuserve_server.observe.metrics.histogram import LATENCY_BOUNDS_S, Histogram
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics

# Seconds of requests to models of different speeds, as on one server or on several.
LATENCIES = {"fast": (0.0002, 0.0009), "medium": (0.002, 0.006), "slow": (0.15, 4.0), "one": (0.03, 0.03)}
RATIOS = (0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
GROUPS = ("sum by (le)", "sum by (le, model_name)", "sum by (le, signature)")


def measured() -> tuple[PrometheusMetrics, dict[str, Histogram]]:
    """Return metrics, and the same latencies as complete histograms by model."""
    metrics, complete = PrometheusMetrics(), {}
    random = np.random.default_rng(3)
    for model, (low, high) in LATENCIES.items():
        histogram = complete[model] = Histogram(LATENCY_BOUNDS_S)
        for latency_s in random.uniform(low, high, 1 if model == "one" else 400):
            finish(metrics, model=model, latency_s=float(latency_s))
            histogram.add(float(latency_s))
    return metrics, complete


def series(metrics: PrometheusMetrics, complete: dict[str, Histogram]) -> Iterator[tuple[str, float]]:
    """Yield the shown buckets, named `shown`, and all buckets, named `complete`, with their counts."""
    [family] = [each for each in metrics.collect() if each.family is REQUEST_LATENCY]
    for sample in family.samples():
        if sample.name.endswith("_bucket"):
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            yield f"shown{{{labels}}}", sample.value
    for model, histogram in complete.items():
        for limit, count in zip([*map(repr, LATENCY_BOUNDS_S), "+Inf"], histogram.cumulative()[0], strict=True):
            yield f'complete{{model_name="{model}",signature="s",le="{limit}"}}', count


@needs("promtool")
@pytest.mark.parametrize("group", GROUPS)
def test_quantiles_of_one_model_and_of_sums_over_models_are_those_of_all_buckets(tmp_path: Path, group: str) -> None:
    metrics, complete = measured()
    found = dict(series(metrics, complete))
    shown = [name for name in found if name.startswith("shown")]
    assert len(shown) < len(found) // 2
    # A query of one bucket, for an objective, finds it although no request was so fast.
    assert all(any('"slow"' in name and f'le="{bound}"' in name for name in shown) for bound in (0.001, 0.01, 0.1))
    quantile = "histogram_quantile({}, {} ({}))".format
    tests = [
        {
            # 0 if the results are the same, for each group.
            "expr": f"max(abs({quantile(ratio, group, 'shown')} - {quantile(ratio, group, 'complete')}))",
            "eval_time": "1m",
            "exp_samples": [{"labels": "{}", "value": 0}],
        }
        for ratio in RATIOS
    ]
    inputs = [{"series": name, "values": f"{value:g} {value:g}"} for name, value in found.items()]
    document = {"evaluation_interval": "1m", "tests": [{"input_series": inputs, "promql_expr_test": tests}]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    run = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
