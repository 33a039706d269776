"""Progress of a client: the bytes that its system has acknowledged. It stops for a client that does not read."""

import asyncio
import socket
import struct
import sys
from typing import Final

# tcpi_bytes_acked of Linux's struct tcp_info (include/uapi/linux/tcp.h), since Linux 4.1.
_TCP_INFO: Final = struct.Struct("=120xQ")


def acknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """Return the number of acknowledged bytes of a TCP connection, or 0 if the system does not report it."""
    connection = transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux":
        return 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:  # The connection has ended.
        return 0
    return int(_TCP_INFO.unpack(info)[0]) if len(info) == _TCP_INFO.size else 0
