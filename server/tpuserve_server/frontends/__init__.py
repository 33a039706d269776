"""Protocols over the inference service: gRPC as a table of methods, REST as one FastAPI app. No transport here."""
