"""Metrics, requests that have ended, traces, logs and the request log: everything that operators see of a server."""
