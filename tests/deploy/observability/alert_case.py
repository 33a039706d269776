"""One case of an alert: series over time, and the alerts that `promtool test rules` must see."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from tests.deploy.dockerfile import ROOT

OBSERVABILITY = ROOT / "deploy/observability"
RULES = sorted((OBSERVABILITY / "rules").glob("*.yaml"))


@cache
def alert_rules() -> dict[str, dict[str, Any]]:
    """Return the alert rules by name."""
    groups = yaml.safe_load((OBSERVABILITY / "rules/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series that make the alert fire at `at`, and similar series that do not.

    `fires` and `quiet` map series to promtool's values, one a minute: `0+5x10` is 0, 5, ..., 50. `labels` and
    `description` are of the only alert that fires.
    """

    alert: str
    at: str
    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    labels: Mapping[str, str]
    description: str

    def unit_tests(self) -> dict[str, Any]:
        """Return both as a file for `promtool test rules`."""
        rule = alert_rules()[self.alert]
        expected = {
            "exp_labels": {**self.labels, **rule["labels"]},
            "exp_annotations": {**rule["annotations"], "description": self.description},
        }
        return {
            "rule_files": [str(path) for path in RULES],
            "evaluation_interval": "1m",
            "tests": [self._test(self.fires, [expected]), self._test(self.quiet, [])],
        }

    def _test(self, series: Mapping[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"alertname": self.alert, "eval_time": self.at, "exp_alerts": expected}],
        }
