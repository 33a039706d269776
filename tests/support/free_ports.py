"""Ports of the loopback for servers that must be told theirs."""

from tpuserve_server.launch.loopback_ports import reserve_port


def free_ports(count: int) -> list[int]:
    """Return different free ports. For about a minute, the kernel gives them to no process that asks for any port."""
    return [reserve_port() for _ in range(count)]
