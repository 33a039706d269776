"""The rules of deploy/observability as the resources of Prometheus Operator and of Google's managed Prometheus.

`python -m deploy.kubernetes.rule_resources` writes both into their components.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).parent
_RULES = _HERE.parent / "observability/rules"


@dataclass(frozen=True, slots=True)
class RuleResource:
    """One kind of resource that holds rules, and its file."""

    path: Path
    api_version: str
    kind: str

    def text(self) -> str:
        """Return the resource with every group of rules, as YAML."""
        labels = {"app.kubernetes.io/name": "tpuserve", "app.kubernetes.io/part-of": "tpuserve"}
        resource = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {"name": "tpuserve", "labels": labels},
            "spec": {"groups": _groups()},
        }
        header = "# Written by `python -m deploy.kubernetes.rule_resources` from deploy/observability/rules.\n"
        return header + yaml.dump(resource, Dumper=_Dumper, sort_keys=False, width=95)


RESOURCES = (
    RuleResource(
        _HERE / "components/prometheus-operator/prometheusrule.yaml", "monitoring.coreos.com/v1", "PrometheusRule"
    ),
    RuleResource(_HERE / "components/managed-prometheus/rules.yaml", "monitoring.googleapis.com/v1", "Rules"),
)


def _groups() -> list[Any]:  # Any: YAML data
    return [group for path in sorted(_RULES.glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, as the rules have them."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


if __name__ == "__main__":
    for rule_resource in RESOURCES:
        rule_resource.path.write_text(rule_resource.text(), encoding="utf-8")
