"""Traces of requests over OTLP: the choice of requests, their spans, and the thread that exports them."""
