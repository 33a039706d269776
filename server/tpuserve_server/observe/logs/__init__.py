"""Logging of the server's processes: one line for each event, written to stderr by a thread that may wait for it."""
