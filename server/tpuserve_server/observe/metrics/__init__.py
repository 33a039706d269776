"""Metrics: measurements of the server, and the page that Prometheus reads."""
