"""The `tpuserve` command. It implements `predict` and `status`, and runs other subcommands as external programs.

Exit codes:

- 0: success.
- 1: the server refused the request, is unreachable or is not ready, or a file is broken.
- 2: wrong usage, including a missing file.
- 127: the distribution of the subcommand is not installed.

External subcommands define their own exit codes.
"""

from tpuserve_client.cli.group import tpuserve as main

__all__ = ["main"]
