"""The options of `tpuserve health`. `health.py` imports click only with an option."""

import sys
from typing import Final

import click

from tpuserve_server.hosts.health_check import LIVE, READY, check_health

_EPILOG: Final = """\b
Examples:
  # a health check of Docker, or an exec probe of Kubernetes
  tpuserve-health
  tpuserve-health --live

\b
Exit codes:
  0  ready, or alive with --live
  1  not ready, not alive, or no server runs
  2  wrong usage, or several servers run and --pid is missing
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--live", is_flag=True, help="Ask whether the process is alive (/healthz), not whether it is ready.")
@click.option("--pid", type=int, help="Process id of the server.  [default: the only server of this user]")
def health(live: bool, pid: int | None) -> None:
    """Ask the server on this machine whether it is ready.

    The command finds the addresses of the server by itself: ports, UNIX socket and TLS. It runs as the user of the
    server.
    """
    sys.exit(check_health(LIVE if live else READY, pid))
