"""HTTP/1.1 of the Python host, based on uvicorn's protocol class and httptools."""
