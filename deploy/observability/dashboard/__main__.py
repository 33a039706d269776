"""`python -m deploy.observability.dashboard`: write the dashboards in grafana."""

from pathlib import Path

from deploy.observability.dashboard.board import LOADTESTS, SERVERS

if __name__ == "__main__":
    for board in (SERVERS, LOADTESTS):
        path = Path(__file__).parents[1] / "grafana" / f"{board.name}.json"
        path.write_text(board.as_json(), encoding="utf-8")
