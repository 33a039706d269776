"""Python API that starts a server in a separate process, from a script, a test or a notebook."""
