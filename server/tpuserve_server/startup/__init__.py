"""Start of the server: flags, configuration files, checks of both, the object graph, programs, and the Python API."""
