"""Kubernetes overlays for a version: its TPU, memory, startup budget, replicas and cost. Runs no compiler."""
