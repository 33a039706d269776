"""Who speaks HTTP: Envoy with this Python embedded, or grpcio and uvicorn. Both carry the same Application."""
