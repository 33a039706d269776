"""Command line of `tpuserve serve`: flags, settings, logs, the banner, and the reports of a start."""
