"""gRPC for both hosts: over ASGI in Envoy, and with grpcio."""
