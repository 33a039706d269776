"""The Python API: a server in a process of its own, from a script, a test or a notebook."""
