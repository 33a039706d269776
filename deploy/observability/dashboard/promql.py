"""PromQL of the panels, in a short form.

`<namespace>`, `<server>`, `<model>` and `<version>` stand for the label matchers of the dashboard's variables,
`<predictions>` for the methods that run a model, and `[rate]` for the range of a rate.
"""

from typing import Final

# The rules in rules/recording.yaml list the same methods.
PREDICTIONS: Final = 'method=~"Predict|Classify|Regress|MultiInference|Model(Stream)?Infer"'
FAILURES: Final = 'fault="server"'

# The labels of a server in legends and sums. Outside Kubernetes, only `instance` exists.
SERVER: Final = "cluster, namespace, pod, instance"
SERVER_LEGEND: Final = "{{namespace}} {{pod}} {{instance}}"

_SHORT_FORMS: Final = (
    ("<version>", '<model>, version=~"$version"'),
    ("<model>", '<server>, model_name=~"$model"'),
    ("<server>", '<namespace>, pod=~"$pod", instance=~"$instance"'),
    ("<namespace>", 'cluster=~"$cluster", namespace=~"$namespace"'),
    ("<predictions>", PREDICTIONS),
    ("<failures>", FAILURES),
    ("[rate]", "[$__rate_interval]"),
)


def promql(text: str) -> str:
    """Return PromQL in its full form."""
    for short, full in _SHORT_FORMS:
        text = text.replace(short, full)
    return text


def quantile(share: float, histogram: str, matchers: str, by: str = "") -> str:
    """Return the query of a quantile of a histogram, in the short form. `by` names labels to keep."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{matchers}}}[rate])))"


def mean(histogram: str, matchers: str, by: str) -> str:
    """Return the query of the mean of a histogram, in the short form."""
    total, count = (f"sum by ({by}) (rate({histogram}_{part}{{{matchers}}}[rate]))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"
