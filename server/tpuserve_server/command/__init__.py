"""The command line of `tpuserve serve`: flags, settings, logs, and what a start prints and reports."""
