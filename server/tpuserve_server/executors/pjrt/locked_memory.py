"""The limit of locked memory (RLIMIT_MEMLOCK), which libtpu needs for transfers between the host and a TPU.

Google's pages set it to 64 TiB (`ulimit -l 68719476736`), more than any machine has.
"""

import logging
import os
import resource

from tpuserve_server.executors.pjrt.failures import in_units

_log = logging.getLogger(__name__)


def raise_locked_memory() -> None:
    """Let this process lock as much memory as the system allows, and log a warning if that is less than the machine's.

    Only a process with the capability SYS_RESOURCE can raise its hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = resource.RLIM_INFINITY
    if soft == hard == unlimited:
        return
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (unlimited, unlimited))
    except (ValueError, OSError):  # not permitted
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if hard != unlimited and hard < memory:
            _log.warning(
                "This process may lock %s of memory, and the machine has %s. Transfers to a TPU may fail or hang. "
                "Remove the limit: `--ulimit memlock=-1` for Docker, `LimitMEMLOCK=infinity` for systemd, the "
                "component `memlock` for Kubernetes, or `ulimit -l unlimited` as root",
                in_units(hard),
                in_units(memory),
            )
