"""The Grafana dashboards of tpuserve: `python -m deploy.observability.dashboard` writes them into grafana."""
