"""The Python host: grpc.aio and uvicorn on one uvloop. It runs on every platform with Python, and is easy to debug."""
