"""Protocols over the inference service: gRPC as a method table, REST as one FastAPI app. Hosts add the transport."""
