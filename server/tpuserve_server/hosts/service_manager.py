"""Reports of the server's state to a service manager such as systemd, by the protocol of sd_notify(3)."""

import logging
import os
import socket
from typing import Literal

_log = logging.getLogger(__name__)

# Only the supervisor has it: the HTTP server would also report its own states, such as the end of a generation.
VARIABLE = "NOTIFY_SOCKET"


def report(state: Literal["READY", "STOPPING"]) -> None:
    """Report a state. Do nothing if no service manager has started this process."""
    address = os.environ.get(VARIABLE)
    if not address:
        return
    # A leading @ means Linux's abstract namespace.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"{state}=1".encode(), path)
    except OSError as error:
        _log.warning("Cannot report %s to the service manager: %s", state, error)
