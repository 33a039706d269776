"""Serving process, standalone or embedded in Envoy."""
