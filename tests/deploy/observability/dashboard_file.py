"""The dashboard as Grafana reads it: its panels and their queries."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.deploy.observability.alert_case import OBSERVABILITY

DASHBOARD = OBSERVABILITY / "grafana/tpuserve.json"
# Values of Grafana's variables for a query outside Grafana.
_VARIABLES = {
    **{f"${name}": ".*" for name in ("cluster", "namespace", "pod", "instance", "model", "version")},
    "$__rate_interval": "10s",
}
_NAME = re.compile(r"(?:tpuserve|process|up|ALERTS|namespace_job:|namespace_job_model:)[a-zA-Z0-9_:]*")


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel, with the variables replaced."""

    panel: str
    expr: str

    def __str__(self) -> str:
        return f"{self.panel}: {self.expr}"


@cache
def read_dashboard() -> dict[str, Any]:
    """Return the dashboard's JSON."""
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def panels() -> list[dict[str, Any]]:
    """Return the panels without rows."""
    return [panel for panel in read_dashboard()["panels"] if panel["type"] != "row"]


def panel_queries() -> list[PanelQuery]:
    """Return the queries of all panels."""
    return [PanelQuery(panel["title"], _filled(target["expr"])) for panel in panels() for target in panel["targets"]]


def metric_names(exprs: Iterable[str]) -> set[str]:
    """Return the names of the metrics in these expressions."""
    return {name for expr in exprs for name in _names(expr)}


def _names(expr: str) -> Iterator[str]:
    """Yield the names outside of strings, label matchers and lists of labels."""
    bare = re.sub(r"\{[^}]*\}", " ", re.sub(r'"[^"]*"', "", expr))
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    for word in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare):
        if _NAME.fullmatch(word):
            yield word


def _filled(expr: str) -> str:
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr
