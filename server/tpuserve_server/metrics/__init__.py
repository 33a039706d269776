"""Metrics: what the server measures, and how Prometheus reads it."""
