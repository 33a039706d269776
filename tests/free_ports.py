"""Ports of the loopback for servers that must be told theirs."""

from tpuserve_server.launch.loopback_ports import reserve_port


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, all different, and that nobody is given who asks for any, for a minute from now."""
    return [reserve_port() for _ in range(count)]
