"""gRPC as the hosts carry it: over ASGI in Envoy, and by grpcio."""
