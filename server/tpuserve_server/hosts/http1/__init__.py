"""HTTP/1.1 of the Python host, on uvicorn's protocol class and httptools."""
