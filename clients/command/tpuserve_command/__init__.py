"""The `tpuserve` command: it starts the programs of the other distributions, and checks that their versions are equal.

Exit codes:

- 0: success.
- 2: wrong usage, or distributions of several versions.
- 127: the distribution of the subcommand is not installed.

The programs define their own exit codes.
"""

__version__ = "0.1.0"
