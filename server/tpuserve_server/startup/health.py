"""`tpuserve health`: asks the server on this machine whether it is ready. It imports click only for its options."""

import sys

from tpuserve_server.hosts.health_check import check_health


def main() -> None:
    """Run `tpuserve health`. This is the entry point of `tpuserve-health`."""
    if len(sys.argv) == 1:
        sys.exit(check_health())
    from tpuserve_server.startup.health_command import health

    health(prog_name="tpuserve health")
