"""gRPC over ASGI, and for replicas of Ray Serve."""
