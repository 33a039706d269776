"""`python -m deploy.observability.dashboard`: write grafana/tpuserve.json."""

from pathlib import Path

from deploy.observability.dashboard.board import dashboard_json

if __name__ == "__main__":
    (Path(__file__).parents[1] / "grafana/tpuserve.json").write_text(dashboard_json(), encoding="utf-8")
