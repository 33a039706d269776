"""The dashboards: their variables, then their rows."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.observability.dashboard.batching import BATCHING
from deploy.observability.dashboard.devices import DEVICES
from deploy.observability.dashboard.loadtest import LOADTEST
from deploy.observability.dashboard.now import NOW
from deploy.observability.dashboard.panels import SOURCE, Row
from deploy.observability.dashboard.process import PROCESS
from deploy.observability.dashboard.refusals import REFUSALS
from deploy.observability.dashboard.replicas import REPLICAS
from deploy.observability.dashboard.stages import STAGES
from deploy.observability.dashboard.versions import CACHE, VERSIONS

ROWS: Final = (NOW, REPLICAS, STAGES, BATCHING, REFUSALS, DEVICES, VERSIONS, CACHE, PROCESS)
# Name, title and label of each variable. Its values depend on the variables before it.
_VARIABLES: Final = (
    ("cluster", "Cluster", "cluster"),
    ("namespace", "Namespace", "namespace"),
    ("pod", "Pod", "pod"),
    ("instance", "Server", "instance"),
    ("model", "Model", "model_name"),
    ("version", "Version", "version"),
)
# Also matches an empty label: requests for a model that is not configured, those without a version, and servers outside
# Kubernetes.
_ANY: Final = ".*"


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard in the file `name`.json. The labels of the metric `series` have all values of its variables."""

    name: str
    title: str
    description: str
    rows: Sequence[Row]
    series: str
    variables: Sequence[tuple[str, str, str]]

    def as_json(self) -> str:
        """Return the dashboard as Grafana reads it from a file."""
        board = dashboard.Dashboard(self.title).uid(self.name).tags(["tpuserve"]).readonly()
        board = board.description(self.description)
        board = board.time("now-1h", "now").refresh("30s").tooltip(DashboardCursorSync.CROSSHAIR)
        source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        board = board.variables([source, *(self._variable(*variable) for variable in self.variables)])
        numbers = itertools.count(1)
        for row in self.rows:
            board = _add(board, row, numbers)
        return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"

    def _variable(self, name: str, title: str, label: str) -> dashboard.QueryVariable:
        before = itertools.takewhile(lambda each: each[0] != name, self.variables)
        matchers = ", ".join(f'{each_label}=~"${each_name}"' for each_name, _, each_label in before)
        series = f"{self.series}{{{matchers}}}" if matchers else self.series
        variable = dashboard.QueryVariable(name).label(title).datasource(SOURCE)
        variable = variable.query(f"label_values({series}, {label})").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        variable = variable.sort(VariableSort.ALPHABETICAL_ASC).multi(True).include_all(True).all_value(_ANY)
        return variable.current(VariableOption(selected=True, text="All", value="$__all"))


SERVERS: Final = Board(
    "tpuserve",
    "tpuserve",
    "Requests, batches, devices and versions of tpuserve's servers.",
    ROWS,
    "tpuserve_version_state",
    _VARIABLES,
)
LOADTESTS: Final = Board(
    "tpuserve-loadtests",
    "tpuserve load tests",
    "Rates, failures and latencies that load tests measure and push, from the view of the client.",
    (LOADTEST,),
    "tpuserve_loadtest_requests_total",
    (("model", "Model", "model"), ("run", "Run", "instance")),
)


def _add(board: dashboard.Dashboard, row: Row, numbers: "itertools.count[int]") -> dashboard.Dashboard:
    board = board.with_row(dashboard.Row(row.title).id(next(numbers)))
    for panel in row.panels:
        board = board.with_panel(panel.builder(next(numbers)))
    return board
