"""Free loopback ports for servers that need fixed ports."""

from tpuserve_server.startup.start import reserve_port


def free_ports(count: int) -> list[int]:
    """Return different free ports. For about a minute, the kernel does not assign them to processes that request any
    port.
    """
    return [reserve_port() for _ in range(count)]
