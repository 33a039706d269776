"""The whole dashboard: its variables, then its rows."""

import itertools
import json
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
from deploy.observability.dashboard.now import NOW
from deploy.observability.dashboard.panels import SOURCE, Row
from deploy.observability.dashboard.process import PROCESS
from deploy.observability.dashboard.refusals import REFUSALS
from deploy.observability.dashboard.stages import STAGES
from deploy.observability.dashboard.versions import CACHE, VERSIONS

ROWS: Final = (NOW, STAGES, BATCHING, REFUSALS, DEVICES, VERSIONS, CACHE, PROCESS)
# Also matches an empty label: requests for a model that is not configured, and those without a version.
_ANY: Final = ".*"


def dashboard_json() -> str:
    """Return the dashboard as Grafana reads it from a file."""
    board = dashboard.Dashboard("tpuserve").uid("tpuserve").tags(["tpuserve"]).readonly()
    board = board.description("Requests, batches, devices and versions of tpuserve's servers.")
    board = board.time("now-1h", "now").refresh("30s").tooltip(DashboardCursorSync.CROSSHAIR)
    board = board.variables(
        [
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
            _variable("instance", "Server", "tpuserve_version_state", "instance"),
            _variable("model", "Model", 'tpuserve_version_state{instance=~"$instance"}', "model_name"),
            _variable(
                "version",
                "Version",
                'tpuserve_version_state{instance=~"$instance", model_name=~"$model"}',
                "version",
            ),
        ]
    )
    numbers = itertools.count(1)
    for row in ROWS:
        board = _add(board, row, numbers)
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _add(board: dashboard.Dashboard, row: Row, numbers: "itertools.count[int]") -> dashboard.Dashboard:
    board = board.with_row(dashboard.Row(row.title).id(next(numbers)))
    for panel in row.panels:
        board = board.with_panel(panel.builder(next(numbers)))
    return board


def _variable(name: str, label: str, series: str, values_of: str) -> dashboard.QueryVariable:
    variable = dashboard.QueryVariable(name).label(label).datasource(SOURCE)
    variable = variable.query(f"label_values({series}, {values_of})").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    variable = variable.sort(VariableSort.ALPHABETICAL_ASC).multi(True).include_all(True).all_value(_ANY)
    return variable.current(VariableOption(selected=True, text="All", value="$__all"))
