"""HTTP hosts: Envoy with this Python embedded, or grpcio and uvicorn. Both run the same Application."""
