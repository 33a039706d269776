"""The Grafana dashboard of tpuserve: `python -m deploy.observability.dashboard` writes grafana/tpuserve.json."""
