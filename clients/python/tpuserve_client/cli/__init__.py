"""The `tpuserve` command: `predict` and `status` are here, the others are found beside it as git finds its own.

Exit codes: 0 done; 1 the server refused, could not be reached or is not ready, or a file is broken; 2 wrong usage, a
file that is not there among it; 127 a subcommand whose distribution is not installed. A subcommand from elsewhere has
its own codes.
"""

from tpuserve_client.cli.group import tpuserve as main

__all__ = ["main"]
